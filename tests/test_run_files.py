"""`sanderling run` on sounds, on several files, and what it draws."""

from __future__ import annotations

import struct
import wave
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from flatbuffers import flexbuffers
from PIL import Image

from sanderling import load, save
from sanderling.cli.drawn_images import found_table
from sanderling.cli.run_text import _counted
from sanderling.errors import InputError
from sanderling.evaluate.task import Ports
from sanderling.evaluate.tasks import image_drawing
from sanderling.evaluate.tasks.output_readers import ClassNaming, Findings, understand
from sanderling.ir import Array, DType, Op, Tensor
from sanderling.ir.text import from_text
from sanderling.runtime.inputs import read_array
from sanderling.runtime.sound import read_wave, resampled

from .support.command_line import answer, call

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = str(DATA / "digits_f32.tflite"), str(DATA / "digits_int8.tflite")
RNG = np.random.default_rng(7)

# -- sounds ---------------------------------------------------------------------------------------


def riff(path: Path, kind: int, bits: int, channels: int, rate: int, data: bytes) -> Path:
    head = struct.pack(
        "<HHIIHH", kind, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits
    )
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # chunks of odd size are padded
    body = b"WAVE" + b"fmt " + struct.pack("<I", 16) + head + odd
    body += b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


SAMPLES = np.array([0.0, 0.5, -0.5, -1.0, 0.25])
ENCODED = {
    (1, 8): (SAMPLES * 128 + 128).astype(np.uint8).tobytes(),
    (1, 16): (SAMPLES * 2**15).astype("<i2").tobytes(),
    (1, 24): b"".join(int(s * 2**23).to_bytes(3, "little", signed=True) for s in SAMPLES),
    (1, 32): (SAMPLES * 2**31).astype("<i4").tobytes(),
    (3, 32): SAMPLES.astype("<f4").tobytes(),
    (3, 64): SAMPLES.astype("<f8").tobytes(),
}


@pytest.mark.parametrize("kind", ENCODED, ids=str)
def test_every_width_of_sample(tmp_path: Path, kind: tuple[int, int]) -> None:
    path = riff(tmp_path / "s.wav", *kind, 1, 8000, ENCODED[kind])
    found = read_wave(path)
    assert found.rate == 8000
    np.testing.assert_allclose(found.samples[:, 0], SAMPLES, atol=1e-7)


def test_pythons_own_files_with_two_channels_are_mixed(tmp_path: Path) -> None:
    pairs = np.array([[100, 300], [-200, 200], [7, 7]], "<i2")
    with wave.open(str(tmp_path / "s.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(pairs.tobytes())
    tensor = Tensor("x", DType.INT16, (3,))
    with pytest.warns(UserWarning, match="16000 samples a second"):
        np.testing.assert_array_equal(read_array(tmp_path / "s.wav", tensor), [200, 0, 7])


def test_a_sound_is_resampled(tmp_path: Path) -> None:
    def tone(rate: int, hertz: float) -> Array:
        return np.sin(2 * np.pi * hertz * np.arange(rate // 2) / rate)

    inner = slice(100, -100)
    for old, new in ((44100, 16000), (16000, 44100), (8000, 16000)):
        made = resampled(tone(old, 440), old, new)
        np.testing.assert_allclose(made[inner], tone(new, 440)[inner], atol=1e-3)
    # What the new rate cannot hold does not come back as another tone.
    assert np.abs(resampled(tone(44100, 12000), 44100, 16000)[inner]).max() < 1e-2


def sound_model(tmp_path: Path) -> Path:
    text = "model version=3\ngraph @main(%x) -> (%y) {\n%x: f32[1,8]\n%y: f32[1,8]\n%y = ABS(%x)\n}"
    save(from_text(text), tmp_path / "m.tflite")
    return tmp_path / "m.tflite"


def test_run_takes_sounds(tmp_path: Path) -> None:
    path = riff(tmp_path / "s.wav", 1, 16, 1, 8000, ENCODED[1, 16])
    with pytest.warns(UserWarning) as said:
        call("run", sound_model(tmp_path), "-i", path, "-o", tmp_path / "y.npy")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy")[0], [*np.abs(SAMPLES), 0, 0, 0])
    assert ["silence is put behind it" in str(w.message) for w in said] == [True, False]
    assert "8000 samples a second" in str(said[1].message)
    with pytest.warns(UserWarning, match="its beginning is taken") as said:
        call("run", sound_model(tmp_path), "-i", path, "--rate", 16000)
    assert len(said) == 1


@pytest.mark.parametrize(
    "content, said",
    [
        (b"no wave", "does not begin with RIFF"),
        (b"RIFF\0\0\0\0WAVE", "its format or its samples are missing"),
        ((85, 16), "format 85 of 16 bits"),
        ((1, 12), "format 1 of 12 bits"),
    ],
    ids=["junk", "empty", "mp3 inside", "12 bits"],
)
def test_sounds_that_cannot_be_read(
    tmp_path: Path, content: bytes | tuple[int, int], said: str
) -> None:
    path = tmp_path / "s.wav"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        riff(path, *content, 1, 8000, b"\0\0\0\0")
    error = call("run", sound_model(tmp_path), "-i", path, status=2).stderr
    assert said in error and "PCM of 8, 16, 24" in error


def test_a_sound_for_a_picture_model(tmp_path: Path) -> None:
    path = riff(tmp_path / "s.wav", 1, 16, 1, 8000, ENCODED[1, 16])
    assert "one long dimension" in call("run", F32, "-i", path, status=2).stderr


# -- several files --------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a", "b", "c"):
        Image.fromarray(RNG.integers(0, 255, (30, 40, 3), np.uint8)).save(folder / f"{name}.png")
    (folder / "notes.txt").write_text("not an input")
    return folder


def test_a_folder_is_one_run_for_each_file(pictures: Path, tmp_path: Path) -> None:
    text = call("run", INT8, "-i", pictures, "-o", tmp_path / "y.npy").stdout
    assert all(f"{n}.png" in text for n in "abc") and "the first of 3 runs" in text
    found = np.load(tmp_path / "y.npy")
    assert found.shape == (3, 1, 10)
    for row, name in zip(found, "abc", strict=True):
        call("run", INT8, "-i", pictures / f"{name}.png", "-o", tmp_path / "one.npy")
        np.testing.assert_array_equal(row, np.load(tmp_path / "one.npy"))


def test_several_files_are_a_line_each(pictures: Path, tmp_path: Path) -> None:
    """What each output holds is for who asks for it."""
    np.savez(tmp_path / "x.npz", image=np.zeros((1, 8, 8, 1), np.float32))
    lines = call("run", F32, "-i", pictures).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["a.png", "b.png", "c.png"]
    assert "to" in lines[2] and "mean" in lines[2] and "first values" not in "".join(lines)
    assert any("--verbose" in line for line in lines)
    assert "first values" in call("run", F32, "-i", pictures, "--verbose").stdout
    assert "first values" in call("run", F32, "-i", tmp_path / "x.npz").stdout
    unused = call("run", F32, "-i", tmp_path / "x.npz", "--verbose").stderr
    assert "--verbose has no effect" in unused


def test_several_files_with_labels_have_their_best_class(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n".join(f"digit-{n}" for n in range(10)))
    text = call("run", F32, "-i", pictures, "--labels", tmp_path / "names.txt").stdout
    assert text.count("digit-") == 3 and "best class" in text


def test_several_pictures_are_said_to_be_written_once(pictures: Path, tmp_path: Path) -> None:
    said = call("run", F32, "-i", pictures, "--picture", tmp_path / "seen")
    assert said.stderr.count("wrote") == 1 and "wrote 3 pictures into" in said.stderr
    assert said.stdout.count("class ") == 3


def test_the_surest_boxes_stand_first() -> None:
    boxes = [{"label": n, "score": s} for n, s in (("cat", 0.5), ("dog", 0.9), ("cat", 0.7))]
    assert _counted(boxes) == "dog 0.90, 2 x cat 0.70"


def test_an_input_given_several_times(pictures: Path) -> None:
    record = answer("run", INT8, "-i", pictures / "b.png", "-i", f"image={pictures / 'a.png'}")
    assert [Path(r["inputs"]["image"]).name for r in record["runs"]] == ["b.png", "a.png"]
    assert all("outputs" in r and r["seconds"] > 0 for r in record["runs"])


def test_inputs_go_in_step(tmp_path: Path) -> None:
    text = "model version=3\ngraph @main(%a, %b) -> (%y) {\n"
    text += "%a: f32[2]\n%b: f32[2]\n%y: f32[2]\n%y = ADD(%a, %b)\n}"
    save(from_text(text), tmp_path / "m.tflite")
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full(2, number, np.float32))
    a = [word for n in (0, 1) for word in ("-i", f"a={tmp_path / f'{n}.npy'}")]
    out = tmp_path / "y.npy"
    call("run", tmp_path / "m.tflite", *a, "-i", f"b={tmp_path / '2.npy'}", "-o", out)
    np.testing.assert_array_equal(np.load(out), [[2, 2], [3, 3]])
    b = [word for n in (0, 1, 2) for word in ("-i", f"b={tmp_path / f'{n}.npy'}")]
    error = call("run", tmp_path / "m.tflite", *a, *b, status=2).stderr
    assert "a has 2 files, b has 3 files" in error


def test_a_folder_without_inputs(tmp_path: Path) -> None:
    assert "no file that an input" in call("run", INT8, "-i", tmp_path, status=2).stderr


# -- what was found -------------------------------------------------------------------------------


def ports(shape: tuple[int, ...], *outputs: tuple[int, ...], dtype: DType = DType.FLOAT32) -> Ports:
    made = {f"y{i}": Tensor(f"y{i}", dtype, s) for i, s in enumerate(outputs)}
    return Ports({"x": Tensor("x", DType.UINT8, shape)}, made, "model.tflite")


def look(
    given: Ports, outputs: list[Array], tmp_path: Path, names: ClassNaming | None = None
) -> tuple[Findings, Array]:
    """What is found in a grey picture of 200x100, and that picture with it."""
    path = tmp_path / "grey.png"
    Image.new("RGB", (200, 100), (128, 128, 128)).save(path)
    reader = understand(given, names or ClassNaming())
    _, frame, _ = reader.pipeline(path, given.input)
    found = reader.read(outputs, frame)
    (tmp_path / "out.png").write_bytes(image_drawing.drawn(path, found, tmp_path / "out.png"))
    return found, np.asarray(Image.open(tmp_path / "out.png")).astype(int)


def changed(picture: Array, rows: slice, columns: slice) -> bool:
    return bool(np.abs(picture[rows, columns] - 128).sum(axis=2).any())


def test_boxes_of_an_ssd(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("???\nperson\n나무\n")
    boxes = np.array([[[0.2, 0.5, 0.8, 0.75], [0, 0, 1, 1]]])
    outputs = [boxes, np.array([[1, 0]]), np.array([[0.9, 0.1]]), np.array([2])]
    found, picture = look(
        ports((1, 64, 64, 3), (), (), (), ()),
        outputs,
        tmp_path,
        ClassNaming(tmp_path / "names.txt"),
    )
    (row,) = found.rows
    assert row["label"] == "나무" and row["box"] == [100, 20, 150, 80] and found.hidden == 1
    assert changed(picture, slice(79, 82), slice(100, 151)) and not changed(
        picture, slice(90, 100), slice(0, 90)
    )
    assert found_table([("grey", found)]).endswith(
        "1 more with too small a score or share is not shown"
    )


def test_names_that_are_too_few_for_an_ssd(tmp_path: Path) -> None:
    """Its outputs have open shapes; how many classes it has, its operator says."""
    options = bytes(flexbuffers.Dumps({"num_classes": 90, "nms_iou_threshold": 0.5}))
    given = ports((1, 64, 64, 3), (), (), (), ())
    op = Op("custom.TFLite_Detection_PostProcess", [], given.outputs.values(), {"options": options})
    for tensor in op.outputs:
        tensor.producer = op
    (tmp_path / "names.txt").write_text("\n".join(map(str, "abcdefgh" * 10)))
    with pytest.raises(InputError, match="it has 80 names, the model 90 classes"):
        understand(given, ClassNaming(tmp_path / "names.txt"))
    (tmp_path / "names.txt").write_text("\n".join(["???", *"abcdefghi" * 10]))
    outputs = [np.ones((1, 1, 4)), np.array([[0]]), np.array([[0.9]]), np.array([1])]
    found, _ = look(given, outputs, tmp_path, ClassNaming(tmp_path / "names.txt"))
    assert [r["label"] for r in found.rows] == ["a"]


def test_boxes_of_a_yolox_go_through_its_letterbox(tmp_path: Path) -> None:
    rows = np.zeros((1, 84, 7))
    # Of 8x8 cells of stride 8, that in row 2 and column 4: 16x16 pixels around (32, 16).
    rows[0, 2 * 8 + 4] = [0, 0, np.log(2), np.log(2), 0.9, 0.0, 1.0]
    found, _ = look(ports((1, 64, 64, 3), (1, 84, 7)), [rows], tmp_path)
    (row,) = found.rows
    assert row["class"] == 1 and row["score"] == pytest.approx(0.9)
    np.testing.assert_allclose(row["box"], [75, 25, 125, 75], atol=0.5)


def test_keypoints(tmp_path: Path) -> None:
    points = np.zeros((1, 1, 17, 3))
    points[..., :2], points[..., 2] = 0.5, 0.8
    points[0, 0, 10] = [0.5, 0.75, 0.8]
    found, picture = look(ports((1, 64, 64, 3), (1, 1, 17, 3)), [points], tmp_path)
    assert found.rows[0]["keypoints"][10][:2] == [150, 50]
    assert changed(picture, slice(45, 55), slice(145, 155))
    assert changed(picture, slice(49, 52), slice(110, 140))  # the forearm
    assert not changed(picture, slice(0, 40), slice(0, 200))


def test_masks(tmp_path: Path) -> None:
    scores = np.zeros((1, 16, 16, 21))
    scores[..., 0], scores[0, :, 8:, 15] = 1, 2
    found, picture = look(ports((1, 16, 16, 3), (1, 16, 16, 21)), [scores], tmp_path)
    assert {r["label"]: round(r["share"], 1) for r in found.rows} == {
        "background": 0.5,
        "person": 0.5,
    }
    assert changed(picture, slice(50, 51), slice(150, 151))
    assert not changed(picture, slice(50, 100), slice(0, 90))
    assert not changed(picture, slice(40, 100), slice(0, 90))


def test_the_best_classes_by_the_command(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "seen"
    record = answer("run", F32, "-i", pictures, "--picture", out)
    assert sorted(p.name for p in out.iterdir()) == ["a.png", "b.png", "c.png"]
    for run in record["runs"]:
        assert len(run["classes"]) == 5 and run["classes"][0]["score"] >= run["classes"][1]["score"]
    one = tmp_path / "one.jpg"
    said = call("run", F32, "-i", pictures / "a.png", "--picture", one)
    assert Image.open(one).size == (40, 30) and "drawn as a classifier" in said.stderr
    assert "found" in said.stdout


def test_outputs_that_are_not_understood(pictures: Path, tmp_path: Path) -> None:

    with pytest.raises(InputError) as error:
        understand(ports((1, 8, 8, 3), (1, 5), (1, 6), (1, 7)), ClassNaming())
    assert "not understood" in str(error.value) and "'y0' f32[1,5]" in str(error.value)
    for kind in ("YOLOX", "MoveNet", "masks", "classes"):
        assert kind in error.value.fix
    with pytest.raises(InputError, match="not understood"):  # a PoseNet has four outputs, too
        understand(
            ports((1, 8, 8, 3), (1, 9, 9, 17), (1, 9, 9, 34), (1, 9, 9, 32), (1, 9, 9, 32)),
            ClassNaming(),
        )
    np.save(tmp_path / "x.npy", np.zeros((1, 8, 8, 1), np.float32))
    for words, said in (
        (["-i", tmp_path / "x.npy", "--picture", tmp_path / "y.png"], "nothing to draw on"),
        (["--random", 0, "--picture", tmp_path / "y.png"], "nothing to draw on"),
        (["-i", pictures / "a.png", "--picture", tmp_path / "y.txt"], "'.txt'"),
        (["-i", pictures, "--picture", tmp_path / "x.npy"], "several pictures go into a folder"),
        (["-i", pictures / "a.png", "--picture", tmp_path / "no" / "y.png"], "no folder"),
    ):
        assert said in call("run", F32, *words, status=2).stderr


def test_names_that_are_not_the_models(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n".join(map(str, range(7))))
    with pytest.raises(InputError, match="7 names, the model 10 classes"):
        understand(ports((1, 8, 8, 3), (1, 10)), ClassNaming(tmp_path / "names.txt"))


def test_the_reference_of_the_shipped_model_is_still_read() -> None:
    assert understand(Ports.of(load(INT8)), ClassNaming()).kind == "classes"
