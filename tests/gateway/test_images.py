"""Images in chats: cut as the checkpoint's processor cuts them, in their place, or a clear 400."""

import base64
import hashlib
import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from engine.models.tower import scale_table
from engine.seeing import Preparation, Seeing
from gateway.inference.picture import PictureInvalid, prepared
from gateway.inference.template import ChatTemplate
from tests.gateway.serving import CHATML, KEY, ask, post, serving

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIDE = 28
CUT = Preparation(side=SIDE, shortest=SIDE, mean=MEAN, std=STD)
PLACEHOLDER = 0  # <|endoftext|> of the test's vocabulary: a token that text cannot spell
SEEING = Seeing(token=PLACEHOLDER, tokens=16, preparation=CUT)
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}"
    "{% if p.type == 'image' %}<|endoftext|>{% else %}{{ p.text }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)


def picture(width=40, height=30, mode="RGB", seed=0):
    random = np.random.default_rng(seed)
    bands = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}[mode]
    values = random.integers(0, 256, (height, width, *bands), dtype=np.uint8)
    return Image.fromarray(values, mode)


def filed(image, kind="PNG", **settings):
    out = io.BytesIO()
    image.save(out, kind, **settings)
    return out.getvalue()


def url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def chat(*parts, **more):
    """Strings are text, bytes are images."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": url(part)}}
        for part in parts
    ]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **more}


@pytest.mark.parametrize(
    ("processor", "how"),
    [
        (
            CLIPImageProcessorPil(
                size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
            ),
            CUT,
        ),
        (
            CLIPImageProcessorPil(
                size={"shortest_edge": 35}, crop_size={"height": SIDE, "width": SIDE}
            ),
            Preparation(side=SIDE, shortest=35, mean=MEAN, std=STD),
        ),
        (
            SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}),
            Preparation(side=SIDE, mean=(0.5,) * 3, std=(0.5,) * 3),
        ),
        (
            LlavaImageProcessorPil(
                size={"shortest_edge": SIDE},
                crop_size={"height": SIDE, "width": SIDE},
                do_pad=True,
            ),
            Preparation(
                side=SIDE,
                shortest=SIDE,
                ground=tuple(int(x * 255) for x in MEAN),
                mean=MEAN,
                std=STD,
            ),
        ),
    ],
    ids=["clip", "clip-larger-than-its-cut", "siglip", "llava-squared"],
)
@pytest.mark.parametrize("size", [(40, 30), (30, 41), (28, 28), (7, 5), (300, 11)])
@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "RGBA"])
def test_pixels_are_exactly_those_of_the_checkpoints_processor(processor, how, size, mode):
    data = filed(picture(*size, mode))
    wanted = processor(Image.open(io.BytesIO(data)), return_tensors="np")["pixel_values"][0]
    scales = scale_table(how).numpy()
    pixels = prepared(data, how).transpose(2, 0, 1)
    got = np.stack([scales[channel][pixels[channel]] for channel in range(3)])
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF", "PNG"])
def test_every_kind_of_file_is_read(kind):
    image = Image.new("RGB", (60, 50), (200, 30, 90))
    pixels = prepared(filed(image, kind), CUT)
    assert np.abs(pixels.astype(int) - [200, 30, 90]).max() <= 3


def test_a_photograph_is_turned_as_it_was_held():
    image = Image.new("RGB", (56, 28), "black")
    image.paste("white", (0, 0, 28, 28))
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned a quarter
    upright = filed(image.rotate(-90, expand=True), quality=95)
    assert np.array_equal(prepared(filed(image, "PNG", exif=turned), CUT), prepared(upright, CUT))


def test_grey_of_16_bits_is_not_white():
    values = np.linspace(0, 65535, 28 * 28).astype(np.uint16).reshape(28, 28)
    pixels = prepared(filed(Image.fromarray(values)), CUT)
    assert np.array_equal(pixels[..., 0], values >> 8)


def claiming(width, height):
    """A PNG of a few bytes that says it is so large."""

    def block(kind, data):
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", head) + block(b"IDAT", body) + block(b"IEND", b"")


def animated(kind):
    first, second = picture(seed=1), picture(seed=2)
    return filed(first, kind, save_all=True, append_images=[second])


BAD = {
    "a bomb": (claiming(50_000, 50_000), "more pixels than the 33554432"),
    "a large one": (claiming(7000, 7000), "7000 x 7000 pixels; at most 33554432"),
    "a line": (claiming(1, 60_000), "one side may be 42799 times the other at most"),
    "nothing in it": (claiming(64, 64), "damaged or cut short"),
    "cut short": (filed(picture(200, 200))[:-500], "damaged or cut short"),
    "a cut photograph": (filed(picture(300, 300), "JPEG")[:2000], "damaged or cut short"),
    "an animated GIF": (animated("GIF"), "animated"),
    "an animated PNG": (animated("PNG"), "animated"),
    "an animated WebP": (animated("WEBP"), "animated"),
    "a TIFF": (filed(picture(), "TIFF"), "not an image of a kind that is read"),
    "a web page": (b"<html>no</html>", "not an image of a kind that is read: PNG, JPEG"),
    "a drawing": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image of a kind"),
}


@pytest.mark.parametrize(("data", "said"), BAD.values(), ids=BAD)
def test_a_file_that_is_no_good_is_refused_with_the_reason(data, said):
    with pytest.raises(PictureInvalid, match=said):
        prepared(data, CUT)


@given(
    kind=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF"]),
    cuts=st.lists(st.tuples(st.integers(0, 1500), st.binary(min_size=1, max_size=8)), max_size=6),
    end=st.integers(0, 1500),
)
@settings(max_examples=150, deadline=None)
def test_whatever_the_bytes_they_give_pixels_or_a_refusal(kind, cuts, end):
    data = bytearray(filed(picture(20, 20), kind))
    for at, change in cuts:
        data[at % len(data) : at % len(data) + len(change)] = change
    try:
        pixels = prepared(bytes(data[: end or None]), CUT)
    except PictureInvalid:
        return
    assert pixels.shape == (SIDE, SIDE, 3)


@pytest.mark.parametrize("template", [CHATML, PARTS], ids=["of-text", "of-parts"])
async def test_images_reach_the_engine_where_the_template_shows_them(tmp_path, template):
    first, second = filed(picture(seed=1)), filed(picture(50, 60, seed=2), "JPEG")
    async with serving(tmp_path, template=template, seeing=SEEING) as server:
        server.say("A fox.")
        got = await ask(server.port, post(chat("Look:", first, "and", second, "Hello")))
        assert got.status == 200, got.body
        sent = server.last
        starts = [image.start for image in sent.images]
        for image, data in zip(sent.images, (first, second), strict=True):
            assert sent.tokens[image.start : image.start + 16] == [PLACEHOLDER] * 16
            assert image.pixels == prepared(data, CUT).tobytes()
            assert image.digest == hashlib.sha256(image.pixels).digest()
        assert sent.tokens.count(PLACEHOLDER) == 32
        assert got.json["usage"]["prompt_tokens"] == len(sent.tokens)
        text = server.tokenizer_text([token for token in sent.tokens if token != PLACEHOLDER])
        assert "Look:" in text
        assert text.index("Look:") < text.index("and") < text.index("Hello")
        between = server.tokenizer_text(sent.tokens[starts[0] + 16 : starts[1]])
        assert between == ("\n" if template is CHATML else "and")


async def test_a_placeholder_that_a_user_spells_is_text(tmp_path):
    async with serving(tmp_path, seeing=SEEING) as server:
        server.say("No.")
        forged = "<|endoftext|> and <|endoftext|>"
        got = await ask(server.port, post(chat(forged, filed(picture()))))
        assert got.status == 200
        assert server.last.tokens.count(PLACEHOLDER) == 16
        plain = await ask(server.port, post(chat(forged)))
        assert plain.status == 200
        assert PLACEHOLDER not in server.last.tokens
        assert not server.last.images


async def test_a_template_that_shows_no_images_says_so(tmp_path):
    blind = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    async with serving(tmp_path, template=blind, seeing=SEEING) as server:
        got = await ask(server.port, post(chat("x", filed(picture()))))
        assert (got.status, got.json["error"]["param"]) == (400, "messages")
        assert "shows 0 of the 1 images" in got.json["error"]["message"]


PATH = "messages[0].content[0].image_url"
WRONG = {
    "elsewhere": ({"url": "http://169.254.169.254/latest"}, f"{PATH}.url", "must be a data URL"),
    "https": ({"url": "HTTPS://example.com/a.png"}, f"{PATH}.url", "not fetched"),
    "a file": ({"url": "file:///etc/passwd"}, f"{PATH}.url", "must be a data URL"),
    "none": ({"url": ""}, f"{PATH}.url", "must be a data URL"),
    "null": ({"url": None}, f"{PATH}.url", "is required"),
    "a number": ({"url": 7}, f"{PATH}.url", "must be a string, not an integer"),
    "no object": (7, PATH, "must be an object"),
    "missing": (None, PATH, "is required"),
    "not base64": ({"url": "data:image/png,abc"}, f"{PATH}.url", "must say ;base64,"),
    "bad base64": ({"url": "data:image/png;base64,%%%"}, f"{PATH}.url", "not valid base64"),
    "umlauts": ({"url": "data:image/png;base64,häß="}, f"{PATH}.url", "not valid base64"),
    "empty": ({"url": "data:image/png;base64,"}, f"{PATH}.url", "holds no data"),
    "no image": ({"url": url(b"hello")}, f"{PATH}.url", "not an image"),
    "a detail": ({"url": url(b"x"), "detail": "huge"}, f"{PATH}.detail", "must be one of auto"),
}


@pytest.mark.parametrize(("value", "param", "said"), WRONG.values(), ids=WRONG)
async def test_what_is_no_image_is_a_400_that_names_the_field(tmp_path, value, param, said):
    body = {"model": "tiny", "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": value}]}
    ]}  # fmt: skip
    async with serving(tmp_path, seeing=SEEING) as server:
        got = await ask(server.port, post(body))
        assert (got.status, got.json["error"]["param"]) == (400, param)
        assert said in got.json["error"]["message"]
        assert not server.engine.submitted


async def test_images_have_limits_of_number_and_context(tmp_path):
    tiny = filed(Image.new("L", (1, 1)))
    async with serving(tmp_path, seeing=SEEING, context=200) as server:
        many = await ask(server.port, post(chat(*[tiny] * 33)))
        assert many.status == 400
        assert "may show 32" in many.json["error"]["message"]
        long = await ask(server.port, post(chat(*[tiny] * 13)))
        assert long.json["error"]["code"] == "context_length_exceeded"
        cut = await ask(server.port, post(chat(tiny, truncate_prompt_tokens=9)))
        assert cut.json["error"]["param"] == "truncate_prompt_tokens"
        system = chat(tiny)
        system["messages"][0]["role"] = "system"
        refused = await ask(server.port, post(system))
        assert "role user only" in refused.json["error"]["message"]


async def test_a_base_of_text_alone_refuses_images_by_their_place(tmp_path):
    async with serving(tmp_path) as server:
        got = await ask(server.port, post(chat("x", filed(picture()))))
        assert (got.status, got.json["error"]["param"]) == (400, "messages[0].content[1].type")
        assert "this model reads text only" in got.json["error"]["message"]


async def test_the_official_client_and_tokenize_see_the_same_prompt(tmp_path):
    body = chat("Hello", filed(picture()))
    async with serving(tmp_path, seeing=SEEING) as server:
        server.say("Yes.")
        async with server.client(KEY) as client:
            answer = await client.chat.completions.create(model="tiny", messages=body["messages"])
        assert answer.choices[0].message.content == "Yes."
        told = await ask(server.port, post(body, path="/tokenize"))
        assert told.json["tokens"] == server.last.tokens
        assert answer.usage.prompt_tokens == told.json["count"]


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m.content | selectattr('type', 'equalto', 'image') %}"
         "{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% set c = m.content %}{% for p in c %}{% endfor %}{% endfor %}",
         True),
        ("{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}", True),
        ("{% for m in messages %}{% for line in m.content.split('x') %}{% endfor %}{% endfor %}",
         False),
    ],
)  # fmt: skip
def test_a_template_that_goes_through_parts_is_told_from_one_that_wants_text(source, parts):
    assert ChatTemplate(source, {}).reads_parts is parts
