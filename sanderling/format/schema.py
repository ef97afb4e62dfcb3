"""The .tflite schema (version 3, as LiteRT 2.3 knows it) as data.

A table is `Name: field:type=default ...` in slot order; `_` is a retired slot. Types are scalars,
`string`, enums, tables, `[vectors]`, `union` (whose tag is the field before it, `<name>_type`),
and `Graph`, an int32 that refers to a subgraph. An enum lists its names from 0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from ..errors import ModelError
from ..ir import Op

FILE_IDENTIFIER = b"TFL3"
METADATA_IDENTIFIER = b"M001"  # of the metadata that a model may carry, a flatbuffer of its own

_ENUMS = """
TensorType: FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64
    COMPLEX128 UINT64 RESOURCE VARIANT UINT32 UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN
    FLOAT8_E5M2
QuantizationDetails: NONE CustomQuantization BlockwiseQuantization MultiAxisQuantization
DimensionType: DENSE SPARSE_CSR
AssociatedFileType: UNKNOWN DESCRIPTIONS TENSOR_AXIS_LABELS TENSOR_VALUE_LABELS
    TENSOR_AXIS_SCORE_CALIBRATION VOCABULARY
SparseIndexVector: NONE Int32Vector Uint16Vector Uint8Vector
BuiltinOperator: ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE
    DEQUANTIZE EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION
    L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU
    RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH
    CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD
    UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB
    DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP
    TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX
    MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV
    SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN
    FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK
    REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE
    RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL
    REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE
    MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5
    SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES
    CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND
    HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
    ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL
    GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
    UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
    STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM
    STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM
    STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
    STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
    STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER
    STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER
    STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE
    STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT
    STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR
    REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
BuiltinOptions: NONE Conv2DOptions DepthwiseConv2DOptions ConcatEmbeddingsOptions
    LSHProjectionOptions Pool2DOptions SVDFOptions RNNOptions FullyConnectedOptions
    SoftmaxOptions ConcatenationOptions AddOptions L2NormOptions
    LocalResponseNormalizationOptions LSTMOptions ResizeBilinearOptions CallOptions
    ReshapeOptions SkipGramOptions SpaceToDepthOptions EmbeddingLookupSparseOptions MulOptions
    PadOptions GatherOptions BatchToSpaceNDOptions SpaceToBatchNDOptions TransposeOptions
    ReducerOptions SubOptions DivOptions SqueezeOptions SequenceRNNOptions StridedSliceOptions
    ExpOptions TopKV2Options SplitOptions LogSoftmaxOptions CastOptions DequantizeOptions
    MaximumMinimumOptions ArgMaxOptions LessOptions NegOptions PadV2Options GreaterOptions
    GreaterEqualOptions LessEqualOptions SelectOptions SliceOptions TransposeConvOptions
    SparseToDenseOptions TileOptions ExpandDimsOptions EqualOptions NotEqualOptions ShapeOptions
    PowOptions ArgMinOptions FakeQuantOptions PackOptions LogicalOrOptions OneHotOptions
    LogicalAndOptions LogicalNotOptions UnpackOptions FloorDivOptions SquareOptions
    ZerosLikeOptions FillOptions BidirectionalSequenceLSTMOptions
    BidirectionalSequenceRNNOptions UnidirectionalSequenceLSTMOptions FloorModOptions
    RangeOptions ResizeNearestNeighborOptions LeakyReluOptions SquaredDifferenceOptions
    MirrorPadOptions AbsOptions SplitVOptions UniqueOptions ReverseV2Options AddNOptions
    GatherNdOptions CosOptions WhereOptions RankOptions ReverseSequenceOptions MatrixDiagOptions
    QuantizeOptions MatrixSetDiagOptions HardSwishOptions IfOptions WhileOptions
    DepthToSpaceOptions NonMaxSuppressionV4Options NonMaxSuppressionV5Options ScatterNdOptions
    SelectV2Options DensifyOptions SegmentSumOptions BatchMatMulOptions CumsumOptions
    CallOnceOptions BroadcastToOptions Rfft2dOptions Conv3DOptions HashtableOptions
    HashtableFindOptions HashtableImportOptions HashtableSizeOptions VarHandleOptions
    ReadVariableOptions AssignVariableOptions RandomOptions BucketizeOptions GeluOptions
    DynamicUpdateSliceOptions UnsortedSegmentProdOptions UnsortedSegmentMaxOptions
    UnsortedSegmentMinOptions UnsortedSegmentSumOptions ATan2Options SignOptions BitcastOptions
    BitwiseXorOptions RightShiftOptions
BuiltinOptions2: NONE StablehloConcatenateOptions StablehloBroadcastInDimOptions
    StablehloSliceOptions StablehloConvolutionOptions StablehloCustomCallOptions
    StablehloReduceOptions StablehloScatterOptions StablehloCompareOptions
    StablehloDynamicSliceOptions StablehloPadOptions StablehloIotaOptions
    StablehloDotGeneralOptions StablehloReduceWindowOptions StablehloSortOptions
    StablehloWhileOptions StablehloGatherOptions StablehloTransposeOptions DilateOptions
    StablehloRngBitGeneratorOptions ReduceWindowOptions StableHLOCompositeOptions
    StablehloShiftLeftOptions StablehloCaseOptions
StablehloPrecisionConfig: DEFAULT HIGH HIGHEST
StablehloComparisonDirection: EQ NE GE GT LE LT
StablehloComparisonType: NOTYPE FLOAT FLOAT_TOTAL_ORDER SIGNED UNSIGNED
RngAlgorithm: DEFAULT PHILOX THREEFRY
Padding: SAME VALID
ActivationFunctionType: NONE RELU RELU_N1_TO_1 RELU6 TANH SIGN_BIT
LSHProjectionType: UNKNOWN SPARSE DENSE
FullyConnectedOptionsWeightsFormat: DEFAULT SHUFFLED4x16INT8
LSTMKernelType: FULL BASIC
CombinerType: SUM MEAN SQRTN
MirrorPadMode: REFLECT SYMMETRIC
ReduceWindowFunction: UNSUPPORTED ADD MUL MINIMUM MAXIMUM ALL ANY
CustomOptionsFormat: FLEXBUFFERS
"""

# Enums are one byte wide but for these.
_WIDE_ENUMS = {
    "BuiltinOperator": "int32",
    "ReduceWindowFunction": "int32",
    "StablehloPrecisionConfig": "uint32",
    "StablehloComparisonDirection": "uint32",
    "StablehloComparisonType": "uint32",
    "QuantizationDetails": "uint8",
    "SparseIndexVector": "uint8",
    "BuiltinOptions": "uint8",
    "BuiltinOptions2": "uint8",
}

_TABLES = """
CustomQuantization: custom:[uint8]
BlockwiseQuantization: scales:int32 zero_points:int32 block_size:int32 block_shape:[int32]
MultiAxisQuantization: scales:int32 zero_points:int32 block_size:int32
    quantized_dimensions:[int32]
QuantizationParameters: min:[float32] max:[float32] scale:[float32] zero_point:[int64]
    details_type:QuantizationDetails details:union quantized_dimension:int32
Int32Vector: values:[int32]
Uint16Vector: values:[uint16]
Uint8Vector: values:[uint8]
DimensionMetadata: format:DimensionType dense_size:int32 array_segments_type:SparseIndexVector
    array_segments:union array_indices_type:SparseIndexVector array_indices:union
SparsityParameters: traversal_order:[int32] block_map:[int32] dim_metadata:[DimensionMetadata]
VariantSubType: shape:[int32] type:TensorType has_rank:bool
Tensor: shape:[int32] type:TensorType buffer:uint32 name:string
    quantization:QuantizationParameters is_variable:bool sparsity:SparsityParameters
    shape_signature:[int32] has_rank:bool variant_tensors:[VariantSubType]
    external_buffer:uint32
StablehloGatherOptions: offset_dims:[int64] collapsed_slice_dims:[int64] start_index_map:[int64]
    index_vector_dim:int64 slice_sizes:[int64] indices_are_sorted:bool
StablehloTransposeOptions: permutation:[int64]
StablehloDotGeneralOptions: lhs_batching_dimensions:[int64] rhs_batching_dimensions:[int64]
    lhs_contracting_dimensions:[int64] rhs_contracting_dimensions:[int64]
    precision_config:[StablehloPrecisionConfig]
StablehloReduceWindowOptions: window_dimensions:[int64] window_strides:[int64]
    base_dilations:[int64] window_dilations:[int64] padding:[int64] body_subgraph_index:Graph
StablehloWhileOptions: cond_subgraph_index:Graph body_subgraph_index:Graph
StablehloSortOptions: dimension:int64 is_stable:bool comparator_subgraph_index:Graph
StablehloConcatenateOptions: dimension:int64
StablehloBroadcastInDimOptions: broadcast_dimensions:[int64]
StablehloCompareOptions: comparison_direction:StablehloComparisonDirection
    compare_type:StablehloComparisonType
StablehloDynamicSliceOptions: slice_sizes:[int64]
StablehloPadOptions: edge_padding_low:[int64] edge_padding_high:[int64] interior_padding:[int64]
StablehloIotaOptions: iota_dimension:int64
StablehloCustomCallOptions: call_target_name:string has_side_effect:bool backend_config:string
    api_version:int32 called_computations:[int32] custom_attributes:[uint8]
StablehloReduceOptions: dimensions:[int64] body_subgraph_index:Graph
StablehloSliceOptions: start_indices:[int64] limit_indices:[int64] strides:[int64]
StablehloConvolutionOptions: window_strides:[int64] padding:[int64] lhs_dilation:[int64]
    rhs_dilation:[int64] window_reversal:[bool] input_batch_dimension:int64
    input_feature_dimension:int64 input_spatial_dimensions:[int64]
    kernel_input_feature_dimension:int64 kernel_output_feature_dimension:int64
    kernel_spatial_dimensions:[int64] output_batch_dimension:int64
    output_feature_dimension:int64 output_spatial_dimensions:[int64] feature_group_count:int64
    batch_group_count:int64 precision_config:[StablehloPrecisionConfig]
StablehloScatterOptions: indices_are_sorted:bool update_window_dims:[int64]
    inserted_window_dims:[int64] scatter_dims_to_operand_dims:[int64] index_vector_dim:int64
    unique_indices:bool update_computation_subgraph_index:Graph
StablehloCaseOptions: branch_subgraph_indices:[Graph]
StablehloRngBitGeneratorOptions: algorithm:RngAlgorithm
Conv2DOptions: padding:Padding stride_w:int32 stride_h:int32
    fused_activation_function:ActivationFunctionType dilation_w_factor:int32=1
    dilation_h_factor:int32=1 quantized_bias_type:TensorType
Conv3DOptions: padding:Padding stride_d:int32 stride_w:int32 stride_h:int32
    fused_activation_function:ActivationFunctionType dilation_d_factor:int32=1
    dilation_w_factor:int32=1 dilation_h_factor:int32=1
Pool2DOptions: padding:Padding stride_w:int32 stride_h:int32 filter_width:int32
    filter_height:int32 fused_activation_function:ActivationFunctionType
DepthwiseConv2DOptions: padding:Padding stride_w:int32 stride_h:int32 depth_multiplier:int32
    fused_activation_function:ActivationFunctionType dilation_w_factor:int32=1
    dilation_h_factor:int32=1
ConcatEmbeddingsOptions: num_channels:int32 num_columns_per_channel:[int32]
    embedding_dim_per_channel:[int32]
LSHProjectionOptions: type:LSHProjectionType
SVDFOptions: rank:int32 fused_activation_function:ActivationFunctionType
    asymmetric_quantize_inputs:bool
RNNOptions: fused_activation_function:ActivationFunctionType asymmetric_quantize_inputs:bool
SequenceRNNOptions: time_major:bool fused_activation_function:ActivationFunctionType
    asymmetric_quantize_inputs:bool
BidirectionalSequenceRNNOptions: time_major:bool
    fused_activation_function:ActivationFunctionType merge_outputs:bool
    asymmetric_quantize_inputs:bool
FullyConnectedOptions: fused_activation_function:ActivationFunctionType
    weights_format:FullyConnectedOptionsWeightsFormat keep_num_dims:bool
    asymmetric_quantize_inputs:bool quantized_bias_type:TensorType quant_spec:[uint8]
SoftmaxOptions: beta:float32
ConcatenationOptions: axis:int32 fused_activation_function:ActivationFunctionType
AddOptions: fused_activation_function:ActivationFunctionType pot_scale_int16:bool=true
MulOptions: fused_activation_function:ActivationFunctionType
L2NormOptions: fused_activation_function:ActivationFunctionType
LocalResponseNormalizationOptions: radius:int32 bias:float32 alpha:float32 beta:float32
LSTMOptions: fused_activation_function:ActivationFunctionType cell_clip:float32
    proj_clip:float32 kernel_type:LSTMKernelType asymmetric_quantize_inputs:bool
UnidirectionalSequenceLSTMOptions: fused_activation_function:ActivationFunctionType
    cell_clip:float32 proj_clip:float32 time_major:bool asymmetric_quantize_inputs:bool
    diagonal_recurrent_tensors:bool
BidirectionalSequenceLSTMOptions: fused_activation_function:ActivationFunctionType
    cell_clip:float32 proj_clip:float32 merge_outputs:bool time_major:bool=true
    asymmetric_quantize_inputs:bool
ResizeBilinearOptions: _ _ align_corners:bool half_pixel_centers:bool
ResizeNearestNeighborOptions: align_corners:bool half_pixel_centers:bool
CallOptions: subgraph:Graph
ReshapeOptions: new_shape:[int32]
SkipGramOptions: ngram_size:int32 max_skip_size:int32 include_all_ngrams:bool
SpaceToDepthOptions: block_size:int32
DepthToSpaceOptions: block_size:int32
SubOptions: fused_activation_function:ActivationFunctionType pot_scale_int16:bool=true
DivOptions: fused_activation_function:ActivationFunctionType
EmbeddingLookupSparseOptions: combiner:CombinerType
GatherOptions: axis:int32 batch_dims:int32
ReducerOptions: keep_dims:bool
SqueezeOptions: squeeze_dims:[int32]
SplitOptions: num_splits:int32
SplitVOptions: num_splits:int32
StridedSliceOptions: begin_mask:int32 end_mask:int32 ellipsis_mask:int32 new_axis_mask:int32
    shrink_axis_mask:int32 offset:bool
CastOptions: in_data_type:TensorType out_data_type:TensorType
ArgMaxOptions: output_type:TensorType
ArgMinOptions: output_type:TensorType
TransposeConvOptions: padding:Padding stride_w:int32 stride_h:int32
    fused_activation_function:ActivationFunctionType quantized_bias_type:TensorType
SparseToDenseOptions: validate_indices:bool
ShapeOptions: out_type:TensorType
FakeQuantOptions: min:float32 max:float32 num_bits:int32 narrow_range:bool
PackOptions: values_count:int32 axis:int32
OneHotOptions: axis:int32
UnpackOptions: num:int32 axis:int32
LeakyReluOptions: alpha:float32
MirrorPadOptions: mode:MirrorPadMode
UniqueOptions: idx_out_type:TensorType=INT32
ReverseSequenceOptions: seq_dim:int32 batch_dim:int32
IfOptions: then_subgraph_index:Graph else_subgraph_index:Graph
CallOnceOptions: init_subgraph_index:Graph
WhileOptions: cond_subgraph_index:Graph body_subgraph_index:Graph
BatchMatMulOptions: adj_x:bool adj_y:bool asymmetric_quantize_inputs:bool
CumsumOptions: exclusive:bool reverse:bool
HashtableOptions: table_id:int32 key_dtype:TensorType value_dtype:TensorType
VarHandleOptions: container:string shared_name:string
RandomOptions: seed:int64 seed2:int64
BucketizeOptions: boundaries:[float32]
GeluOptions: approximate:bool
ReduceWindowOptions: reduce_function:ReduceWindowFunction
OperatorCode: deprecated_builtin_code:int8 custom_code:string version:int32=1 builtin_code:int32
StableHLOCompositeOptions: name:string decomposition_subgraph_index:Graph
    composite_attributes:[uint8] composite_attributes_format:CustomOptionsFormat version:int32
Operator: opcode_index:uint32 inputs:[int32] outputs:[int32] builtin_options_type:BuiltinOptions
    builtin_options:union custom_options:[uint8] custom_options_format:CustomOptionsFormat
    mutating_variable_inputs:[bool] intermediates:[int32] large_custom_options_offset:uint64
    large_custom_options_size:uint64 builtin_options2_type:BuiltinOptions2
    builtin_options2:union debug_metadata_index:int32=-1
SubGraph: tensors:[Tensor] inputs:[int32] outputs:[int32] operators:[Operator] name:string
    debug_metadata_index:int32=-1
Buffer: data:[uint8] offset:uint64 size:uint64
ExternalBufferGroup: name:string
ExternalBuffer: id:uint32 group:uint32 offset:uint64 length:uint64 packing:string
Metadata: name:string buffer:uint32
TensorMap: name:string tensor_index:uint32
SignatureDef: inputs:[TensorMap] outputs:[TensorMap] signature_key:string _
    subgraph_index:uint32
Model: version:uint32 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:string
    buffers:[Buffer] metadata_buffer:[int32] metadata:[Metadata] signature_defs:[SignatureDef]
    external_buffer_groups:[ExternalBufferGroup] external_buffers:[ExternalBuffer]
"""

# Of the metadata that a model may carry: a schema of its own, as far as it names files.
_METADATA_TABLES = """
AssociatedFile: name:string description:string type:AssociatedFileType locale:string
TensorMetadata: name:string description:string dimension_names:[string] _ _ _
    associated_files:[AssociatedFile]
SubGraphMetadata: name:string description:string input_tensor_metadata:[TensorMetadata]
    output_tensor_metadata:[TensorMetadata] associated_files:[AssociatedFile] _ _
ModelMetadata: name:string description:string version:string
    subgraph_metadata:[SubGraphMetadata] author:string license:string
    associated_files:[AssociatedFile] min_parser_version:string
"""

# Option tables without fields.
_EMPTY = """
PadOptions PadV2Options SpaceToBatchNDOptions BatchToSpaceNDOptions TopKV2Options
TransposeOptions ExpOptions CosOptions LogSoftmaxOptions DequantizeOptions MaximumMinimumOptions
TileOptions GreaterOptions GreaterEqualOptions LessOptions LessEqualOptions NegOptions
SelectOptions SliceOptions ExpandDimsOptions EqualOptions NotEqualOptions RankOptions PowOptions
LogicalOrOptions AbsOptions HardSwishOptions LogicalAndOptions LogicalNotOptions FloorDivOptions
SquareOptions ZerosLikeOptions FillOptions FloorModOptions RangeOptions SquaredDifferenceOptions
ReverseV2Options AddNOptions GatherNdOptions WhereOptions MatrixDiagOptions QuantizeOptions
MatrixSetDiagOptions NonMaxSuppressionV4Options NonMaxSuppressionV5Options ScatterNdOptions
SelectV2Options DensifyOptions SegmentSumOptions BroadcastToOptions Rfft2dOptions
HashtableFindOptions HashtableImportOptions HashtableSizeOptions ReadVariableOptions
AssignVariableOptions DynamicUpdateSliceOptions UnsortedSegmentProdOptions
UnsortedSegmentMaxOptions UnsortedSegmentSumOptions ATan2Options UnsortedSegmentMinOptions
SignOptions BitcastOptions BitwiseXorOptions RightShiftOptions DilateOptions
StablehloShiftLeftOptions
"""

# The options of an operator are the table of its name, but for these. The rest have none.
_OPTIONS_EXCEPTIONS = """
Pool2DOptions: AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D
ReducerOptions: MEAN SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL
MaximumMinimumOptions: MAXIMUM MINIMUM
L2NormOptions: L2_NORMALIZATION
SequenceRNNOptions: UNIDIRECTIONAL_SEQUENCE_RNN
Conv3DOptions: CONV_3D CONV_3D_TRANSPOSE
RandomOptions: RANDOM_STANDARD_NORMAL RANDOM_UNIFORM MULTINOMIAL
StableHLOCompositeOptions: STABLEHLO_COMPOSITE
"""

SCALARS = {
    "bool": struct.Struct("<?"),
    "int8": struct.Struct("<b"),
    "uint8": struct.Struct("<B"),
    "uint16": struct.Struct("<H"),
    "int32": struct.Struct("<i"),
    "uint32": struct.Struct("<I"),
    "int64": struct.Struct("<q"),
    "uint64": struct.Struct("<Q"),
    "float32": struct.Struct("<f"),
}


@dataclass(frozen=True)
class Field:
    """One field of a table. kind: scalar, enum, graph, string, table, union or vector."""

    name: str
    slot: int
    kind: str
    type: str  # the scalar's, enum's or table's name; for a vector, of its elements
    element: str = ""  # a vector's element kind
    default: Any = None

    @cached_property
    def scalar(self) -> struct.Struct:
        """How the value (or one element) is stored inline."""
        return SCALARS[_storage(self.type)]


def _storage(type_name: str) -> str:
    """The scalar type in which a scalar, an enum or a subgraph index is stored."""
    if type_name == "Graph":
        return "int32"
    return type_name if type_name in SCALARS else _WIDE_ENUMS.get(type_name, "int8")


def _rows(text: str) -> dict[str, list[str]]:
    """`Name: words ...` rows; an indented line continues the row above."""
    joined = text.strip().replace("\n    ", " ").splitlines()
    return {row.split(":", 1)[0]: row.split(":", 1)[1].split() for row in joined}


ENUMS: dict[str, tuple[str, ...]] = {name: tuple(v) for name, v in _rows(_ENUMS).items()}
METADATA_ENUMS = ("AssociatedFileType",)
METADATA_TABLES = tuple(_rows(_METADATA_TABLES))
_TABLE_ROWS = _rows(_TABLES) | {name: [] for name in _EMPTY.split()} | _rows(_METADATA_TABLES)


def _kind(type_name: str) -> str:
    if type_name in ("string", "union"):
        return type_name
    if type_name == "Graph":
        return "graph"
    if type_name in SCALARS:
        return "scalar"
    return "enum" if type_name in ENUMS else "table"


def _default(kind: str, type_name: str, text: str) -> Any:
    if kind == "enum":
        return text or ENUMS[type_name][0]
    if kind == "graph":
        return 0
    if kind != "scalar":
        return None
    if type_name == "bool":
        return text == "true"
    return float(text or 0) if type_name == "float32" else int(text or 0)


def _field(slot: int, text: str) -> Field:
    name, rest = text.split(":", 1)
    type_name, _, default = rest.partition("=")
    if type_name.startswith("["):
        element = type_name[1:-1]
        return Field(name, slot, "vector", element, _kind(element))
    kind = _kind(type_name)
    return Field(name, slot, kind, type_name, default=_default(kind, type_name, default))


TABLES: dict[str, tuple[Field, ...]] = {
    name: tuple(_field(slot, text) for slot, text in enumerate(row) if text != "_")
    for name, row in _TABLE_ROWS.items()
}
# A vtable with more slots than this comes from a newer schema.
SLOTS: dict[str, int] = {name: len(row) for name, row in _TABLE_ROWS.items()}


def _options_of_operators() -> dict[str, str]:
    by_name = {name.removesuffix("Options").lower(): name for name in TABLES}
    found = {op: by_name.get(op.replace("_", "").lower(), "") for op in ENUMS["BuiltinOperator"]}
    for table, ops in _rows(_OPTIONS_EXCEPTIONS).items():
        found.update(dict.fromkeys(ops, table))
    return {op: table if table.endswith("Options") else "" for op, table in found.items()}


# The options table of each builtin operator; "" where it has none.
OPTIONS: dict[str, str] = _options_of_operators()


@cache
def attribute_names(op_name: str, table: str = "") -> frozenset[str]:
    """The attributes that an op may have. table: the options that its file gave it, if it is not
    the operator's own (an operator that has none keeps a stranger's, and no kernel reads it)."""
    return frozenset(f.name for f in TABLES.get(table or OPTIONS.get(op_name, ""), ()))


def check_attributes(op: Op) -> None:
    """Refuse an attribute that the schema does not give to the operator: no file can hold it, and
    one delegate might read it where another does not."""
    known = attribute_names(op.name, op.options)
    if op.attrs.keys() <= known or op.is_custom:
        return
    unknown = ", ".join(sorted(op.attrs.keys() - known))
    fix = f"{op.name} has: {', '.join(sorted(known)) or 'none'}"
    raise ModelError(f"no attribute {unknown}", where=op.where, fix=fix)


def default_options(op_name: str) -> dict[str, Any]:
    """An operator's attributes as a file that says nothing sets them."""
    return {f.name: f.default for f in TABLES.get(OPTIONS.get(op_name, ""), ())}
