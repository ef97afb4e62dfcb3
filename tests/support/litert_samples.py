"""Programs for LiteRT's Python interface as its documentation shows them, in our own words. PACKAGE
is `ai_edge_litert` or `sanderling.litert`: nothing else differs. The result is `answer`."""

from __future__ import annotations

SAMPLES = {
    # A model from a file, inputs and outputs in order.
    "basic": """
import numpy as np
from PACKAGE.compiled_model import CompiledModel

model = CompiledModel.from_file(PATH)
inputs = model.create_input_buffers(0)
outputs = model.create_output_buffers(0)
inputs[0].write(np.array([1, 2, 3, 4], dtype=np.float32))
inputs[1].write(np.array([10, 20, 30, 40], dtype=np.float32))
model.run_by_index(0, inputs, outputs)
answer = outputs[0].read(4, np.float32).tolist()
""",
    # A model from memory, by names, with everything given back.
    "names": """
import numpy as np
from PACKAGE.compiled_model import CompiledModel

with open(PATH, "rb") as file, CompiledModel.from_buffer(file.read()) as model:
    key = model.get_signature_by_index(0)["key"]
    details = model.get_input_tensor_details(key)
    inputs = {}
    for factor, (name, detail) in enumerate(details.items(), 1):
        inputs[name] = model.create_input_buffer_by_name(key, name)
        inputs[name].write(np.full(detail["shape"], factor, dtype=detail["dtype"]))
    names = model.get_signature_list()[key]["outputs"]
    outputs = {name: model.create_output_buffer_by_name(key, name) for name in names}
    model.run_by_name(key, inputs, outputs)
    shape = model.get_output_tensor_details(key)[names[0]]["shape"]
    answer = outputs[names[0]].read(int(np.prod(shape)), np.float32).reshape(shape).tolist()
    for buffer in (*inputs.values(), *outputs.values()):
        buffer.destroy()
""",
    # Accelerators, options and an environment that models share.
    "options": """
import numpy as np
from PACKAGE.compiled_model import CompiledModel
from PACKAGE.environment import Environment, EnvironmentOptions
from PACKAGE.hardware_accelerator import HardwareAccelerator
from PACKAGE.options import CpuKernelMode, CpuOptions, Options

with Environment.create(options=EnvironmentOptions()) as shared:
    answer = []
    for mode in (CpuKernelMode.DELEGATE, CpuKernelMode.REFERENCE):
        options = Options(
            hardware_accelerators=HardwareAccelerator.CPU,
            cpu_options=CpuOptions(num_threads=1, kernel_mode=mode),
        )
        model = CompiledModel.from_file(PATH, environment=shared, options=options)
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        for buffer in inputs:
            buffer.write(np.ones(4, np.float32))
        model.run_by_index(0, inputs, outputs)
        answer.append((model.is_fully_accelerated(), outputs[0].read(4, np.float32).tolist()))
""",
    # Memory of one's own, which begins on a boundary of 64 bytes.
    "host memory": """
import numpy as np
from PACKAGE.compiled_model import CompiledModel
from PACKAGE.tensor_buffer import TensorBuffer

def aligned(count):
    raw = np.zeros(count + 16, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + count]

model = CompiledModel.from_file(PATH)
own, result = aligned(4), aligned(4)
inputs = [TensorBuffer.create_from_host_memory(own), model.create_input_buffers(0)[1]]
inputs[1].write(np.full(4, 10, np.float32))
outputs = [TensorBuffer.create_from_host_memory(result)]
answer = []
for value in (1, 2):
    own[:] = value
    model.run_by_index(0, inputs, outputs)
    answer.append(result.tolist())
""",
    # The interpreter, from the same package.
    "interpreter": """
import numpy as np
from PACKAGE.interpreter import Interpreter

interpreter = Interpreter(model_path=PATH)
interpreter.allocate_tensors()
for detail in interpreter.get_input_details():
    interpreter.set_tensor(detail["index"], np.ones(detail["shape"], detail["dtype"]))
interpreter.invoke()
answer = interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).tolist()
""",
}
ANSWERS = {
    "basic": [11, 22, 33, 44],
    "names": [3, 3, 3, 3],
    "options": [(True, [2, 2, 2, 2]), (False, [2, 2, 2, 2])],
    "host memory": [[11, 11, 11, 11], [12, 12, 12, 12]],
    "interpreter": [2, 2, 2, 2],
}
