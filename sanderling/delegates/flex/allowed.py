"""TensorFlow's operators that a model file may ask for.

A file is not trusted: an operator runs only if it stands here. Those that stand here compute their
results from their operands (or from random numbers) and do nothing else: they read and write no
file, open no connection, call no function of the file or of Python, and keep no state. The list
of TensorFlow Lite's own Flex delegate is no such list: it has Save, Restore and Abort.

Left out on purpose, though TensorFlow calls them stateless: ReadFile, MatchingFiles,
ImmutableConst and GenerateVocabRemapping, which read files; DecodeProtoV2 and EncodeProto, which
read the file that an attribute names; DebugIdentity and its kin, which write to the address that
an attribute names; PyFuncStateless; Abort; XlaCustomCall; DecodeCompressed, whose result may be of
any size.
"""

from __future__ import annotations

_GROUPS = {
    "arithmetic": """
        Abs Add AddN AddV2 ApproximateEqual Ceil ClipByValue Cross Cumprod Cumsum
        CumulativeLogsumexp Div DivNoNan Exp Expm1 Floor FloorDiv FloorMod Inv InvGrad Log Log1p
        Maximum Minimum Mod Mul MulNoNan Neg NextAfter Pow RealDiv Reciprocal ReciprocalGrad Rint
        Round Rsqrt RsqrtGrad Sign Sqrt SqrtGrad Square SquaredDifference Sub TruncateDiv
        TruncateMod Xdivy Xlog1py Xlogy""",
    "trigonometry and special functions": """
        Acos Acosh Angle Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0
        BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc Cos Cosh Dawsn
        Digamma Erf Erfc Erfinv Expint FresnelCos FresnelSin Igamma IgammaGradA Igammac Lgamma Ndtri
        Polygamma Sin Sinh Spence Tan Tanh TanhGrad Zeta""",
    "comparison, logic and bits": """
        BitwiseAnd BitwiseOr BitwiseXor Equal Greater GreaterEqual InTopK InTopKV2 Invert IsFinite
        IsInf IsNan LeftShift Less LessEqual LogicalAnd LogicalNot LogicalOr NotEqual
        PopulationCount RightShift Select SelectV2""",
    "complex numbers and transforms": """
        Complex ComplexAbs Conj ConjugateTranspose FFT FFT2D FFT3D FFTND IFFT IFFT2D IFFT3D IFFTND
        IRFFT IRFFT2D IRFFT3D IRFFTND Imag RFFT RFFT2D RFFT3D RFFTND Real""",
    "activations and their gradients": """
        Elu EluGrad LeakyRelu LeakyReluGrad LogSoftmax Relu Relu6 Relu6Grad ReluGrad Selu SeluGrad
        Sigmoid SigmoidGrad Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign
        SoftsignGrad SparseSoftmaxCrossEntropyWithLogits""",
    "convolution, pooling and normalisation": """
        AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchNormWithGlobalNormalization
        BatchNormWithGlobalNormalizationGrad BiasAdd BiasAddGrad BiasAddV1 Conv Conv2D
        Conv2DBackpropFilter Conv2DBackpropInput Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2
        Conv3DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNative
        DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Dilation2D
        Dilation2DBackpropFilter Dilation2DBackpropInput FractionalAvgPool FractionalMaxPool
        FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2
        FusedBatchNormV3 FusedPadConv2D FusedResizeAndPadConv2D L2Loss LRN LRNGrad MaxPool MaxPool3D
        MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2
        MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax""",
    "recurrent cells and sequences": """
        BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 CTCBeamSearchDecoder CTCGreedyDecoder
        CTCLoss CTCLossV2 EditDistance GRUBlockCell GRUBlockCellGrad LSTMBlockCell LSTMBlockCellGrad
        ReverseSequence""",
    "linear algebra": """
        BandedTriangularSolve BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchMatrixDiag
        BatchMatrixDiagPart BatchMatrixInverse BatchMatrixSetDiag Cholesky CholeskyGrad Diag
        DiagPart Eig Einsum LogMatrixDeterminant Lu MatMul MatrixBandPart MatrixDeterminant
        MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3
        MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiag MatrixSetDiagV2
        MatrixSetDiagV3 MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr
        SelfAdjointEig SelfAdjointEigV2 SparseMatMul Svd TridiagonalMatMul TridiagonalSolve""",
    "reductions and order": """
        All Any ApproxTopK ArgMax ArgMin Bincount Bucketize DenseBincount EuclideanNorm
        HistogramFixedWidth IsotonicRegression LowerBound Max Mean Min NthElement Prod
        RaggedBincount SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd
        SegmentProdV2 SegmentSum SegmentSumV2 SparseBincount Sum TopK TopKV2 UnsortedSegmentMax
        UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound""",
    "shapes and layouts": """
        BatchToSpace BatchToSpaceND Bitcast BroadcastArgs BroadcastGradientArgs BroadcastTo Cast
        Concat ConcatOffset ConcatV2 DataFormatDimMap DataFormatVecPermute DepthToSpace
        EnsureShape ExpandDims Fill Identity IdentityN InvertPermutation LinSpace MirrorPad
        MirrorPadGrad OneHot OnesLike Pack Pad PadV2 PreventGradient Range Rank Reshape Reverse
        ReverseV2 Roll Shape ShapeN Size Slice Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth
        Split SplitV Squeeze StopGradient StridedSlice StridedSliceGrad Tile TileGrad Transpose
        Unpack UnravelIndex ZerosLike""",
    "gathering, scattering and sets": """
        DenseToDenseSetOperation DenseToSparseSetOperation DynamicPartition DynamicStitch Gather
        GatherNd GatherV2 ListDiff ParallelDynamicStitch
        ScatterNd ScatterNdNonAliasingAdd SetSize SparseToSparseSetOperation TensorScatterAdd
        TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate
        TensorStridedSliceUpdate Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Where""",
    "ragged and sparse tensors": """
        RaggedCross RaggedFillEmptyRows RaggedGather RaggedRange RaggedTensorToSparse
        RaggedTensorToTensor SparseAdd SparseConcat SparseCross SparseCrossHashed SparseCrossV2
        SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows
        SparseFillEmptyRowsGrad SparseReduceMax SparseReduceMaxSparse SparseReduceSum
        SparseReduceSumSparse SparseReorder SparseReshape SparseSegmentMean SparseSegmentMeanGrad
        SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad
        SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad
        SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad SparseSoftmax
        SparseSparseMaximum SparseSparseMinimum SparseSplit SparseTensorDenseAdd
        SparseTensorDenseMatMul SparseToDense""",
    "pictures and boxes": """
        AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation CombinedNonMaxSuppression
        CropAndResize CropAndResizeGradBoxes CropAndResizeGradImage DecodeAndCropJpeg DecodeBmp
        DecodeGif DecodeImage DecodeJpeg DecodePng DrawBoundingBoxes DrawBoundingBoxesV2 EncodeJpeg
        EncodeJpegVariableQuality EncodePng ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches
        ExtractJpegShape ExtractVolumePatches GenerateBoundingBoxProposals HSVToRGB
        ImageProjectiveTransformV2 ImageProjectiveTransformV3 NonMaxSuppression NonMaxSuppressionV2
        NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps
        RGBToHSV ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad
        ResizeNearestNeighbor ResizeNearestNeighborGrad ScaleAndTranslate ScaleAndTranslateGrad""",
    "sound": "AudioSpectrogram DecodeWav EncodeWav Mfcc",
    "text and records": """
        AsString DecodeBase64 DecodeCSV DecodeJSONExample DecodePaddedRaw DecodeRaw EncodeBase64
        Fingerprint ParseExample ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2
        ParseSingleExample ParseSingleSequenceExample ParseTensor ReduceJoin RegexFullMatch
        RegexReplace SerializeTensor StaticRegexFullMatch StaticRegexReplace StringFormat StringJoin
        StringLength StringLower StringNGrams StringSplit StringSplitV2 StringStrip
        StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber
        StringUpper Substr UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript
        UnicodeTranscode UnsortedSegmentJoin""",
    "quantisation": """
        Dequantize FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
        FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
        FakeQuantWithMinMaxVarsPerChannelGradient QuantizeAndDequantize QuantizeAndDequantizeV2
        QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 UniformDequantize UniformQuantize
        UniformQuantizedAdd UniformQuantizedClipByValue UniformQuantizedConvolution
        UniformQuantizedConvolutionHybrid UniformQuantizedDot UniformQuantizedDotHybrid
        UniformRequantize""",
    "random numbers": """
        Multinomial ParameterizedTruncatedNormal RandomGamma RandomGammaGrad RandomIndexShuffle
        RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform
        RandomUniformInt SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 SobolSample
        StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomBinomial
        StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg
        StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal
        StatelessRandomNormalV2 StatelessRandomPoisson StatelessRandomUniform
        StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
        StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessSampleDistortedBoundingBox
        StatelessShuffle StatelessTruncatedNormal StatelessTruncatedNormalV2 TruncatedNormal""",
}

ALLOWED = frozenset(name for names in _GROUPS.values() for name in names.split())
