"""`Qwen35`: load a bundle, ask it something, read the answer as it comes."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from amdxdna.arguments import Uncopied
from amdxdna.signals import imports
from qwen35.arguments import called, stop_strings, text, token_ids, wants, whole
from qwen35.arguments import path as is_path
from qwen35.conversation import Conversation, Reply, user_message
from qwen35.engine import Generation, Input, Model, PrefixCache, Session, generate
from qwen35.errors import ImageError, ModelError, PromptTooLong, UsageError
from qwen35.sampling import GREEDY, LoopDetector, Sampler, Sampling, card_sampling
from qwen35.stats import Stats
from qwen35.template import Control, ImageSlot, Piece, Prompt, encode, render
from qwen35.threads import Threads
from qwen35.tokenizer import Tokenizer
from qwen35.turns import Turn

if TYPE_CHECKING:
    from qwen35.bundle import Bundle
    from qwen35.model.text import TextModel
    from qwen35.pictures import Pictures, Seen
    from qwen35.structured import JsonGrammars

__all__ = ["DEFAULT_BUNDLE", "Info", "Qwen35", "find_bundle"]

DEFAULT_BUNDLE = Path(__file__).parent / "data" / "default"
REAL_BUNDLE = "brishen/iron-qwen3.5-2b-npu2"
REAL_CHECKPOINT = "Qwen/Qwen3.5-2B"
#: The model's context when trained; more would run, and answer badly.
TRAINED_CTX = 262_144

Message = Mapping[str, Any]


def find_bundle(path: str | os.PathLike[str] | None = None) -> Path:
    """The bundle directory to use: `path`, else the environment's QWEN35_BUNDLE, else the one in the package.

    A Hugging Face id (owner/name, owner/name@revision) is taken from the hub's cache, else downloaded.

    Raises ModelError naming what was tried when there is no bundle there.
    """
    if path is not None:
        is_path("path", path)
    named = os.environ.get("QWEN35_BUNDLE", "")
    if path or named:
        chosen = Path(path or named)
        where = str(chosen) if path else f"QWEN35_BUNDLE={named}"
        remedy = "give a directory with a manifest.txt"
        if (chosen / "manifest.txt").is_file():
            return chosen
        if not chosen.exists():
            from qwen35.bundle.hub import fetch, is_id

            if is_id(str(path or named)):
                return fetch(str(path or named))
            from qwen35.cli.words import nearest_folders

            near = nearest_folders(str(chosen))
            remedy += f" (did you mean {' or '.join(near)}?)" if near else ""
            raise ModelError("there is no such bundle", where, remedy)
        if (chosen / "config.json").is_file():
            remedy = f"it is a checkpoint; make a bundle of it: python -m qwen35 export {chosen} --out DIR"
        raise ModelError("this is no bundle", where, remedy)
    if (DEFAULT_BUNDLE / "manifest.txt").is_file():
        return DEFAULT_BUNDLE
    raise ModelError(
        "no bundle was given and this installation has no built-in one",
        str(DEFAULT_BUNDLE),
        "name a bundle directory, set QWEN35_BUNDLE, or make one with python -m qwen35 export",
    )


@dataclass(frozen=True)
class Info:
    """What is running. `contexts` are the hardware contexts the bundle uses, `sampling` its own default."""

    name: str
    bundle: Path | None = None
    builtin: bool = False
    device: str = ""
    emulated: bool = False
    contexts: int = 0
    hidden: int = 0
    vocab: int = 0
    layers: int = 0
    vision: bool = False
    weights: str = ""
    sampling: Sampling | None = None

    def line(self) -> str:
        """One line for a person: model, bundle, device, contexts."""
        device = "an emulated NPU" if self.emulated else f"the NPU {self.device}"
        size = f" ({self.layers} layers of {self.hidden}, {self.weights})" if self.layers else ""
        where = "" if self.builtin else f", bundle {self.bundle}"
        contexts = f", {self.contexts} hardware contexts" if self.contexts else ""
        return f"{self.name}{size}{where}, on {device}{contexts}"


class Qwen35(Uncopied):
    """A model ready to answer. Close it, or use it as a context manager, to give the device back.

    Thread-safe. Answers take turns with the one model: replies and generations may be begun while others are
    half read, drawn alternately in one thread, or each in a thread of its own (asyncio: `await
    asyncio.to_thread(reply.result)`, or a step of its iterator at a time); each gives, token for token, what
    it gives alone, whatever happens to the others (Ctrl-C, errors, a lost device). A turn lasts one pass of a
    prompt (a pass's pictures included) or one token; while others wait, an answer keeps the model for a
    quarter of a second before the next has it, and none waits for ever. An answer that another came between
    keeps a copy of its state in host memory, at most one context's worth, until it is drawn to its end,
    closed or dropped. An answer half drawn that nobody draws holds nothing up.

    `prefill` and `decode` share one more state, apart from every answer's. Callbacks (`cancel`, `progress`
    of the prompt, `stream`) run between steps and may use the model; `progress` of a picture and signal
    handlers that interrupt a step get a UsageError there. `close` waits for the step that runs; replies that
    are read later raise Closed, as does everything in a forked child.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[int] = (),
        info: Info | None = None,
        vision: Pictures | None = None,
        device: Any = None,
        pass_tokens: int = 0,
        cache_bytes: int = 512 << 20,
        reopen: Callable[[], tuple[Any, TextModel]] | None = None,
    ) -> None:
        """From its parts; `load` is the usual way. `stop` are token ids that end an answer.

        `cache_bytes` bounds the states kept between turns; 0 keeps none (answers are the same, only later).
        `reopen` makes device and model anew; it is called by the first use after the device was lost.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        self.info = info or Info("a model")
        self.vision = vision
        self.device = device
        cache = PrefixCache(cache_bytes) if cache_bytes else None
        failed = weakref.WeakMethod(self._failed)  # a forgotten model ends without the cycle collector

        def tell(error: Exception) -> None:
            method = failed()
            if method is not None:
                method(error)

        self.session = Session(model, cache, pass_tokens, tell)
        self._turn = Turn()
        """Of `prefill` and `decode`."""
        self._reopen = reopen
        self._grammars: JsonGrammars | None = None
        self._closed = False

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        max_ctx: int = 8192,
        device: str | int | None = "auto",
        *,
        cache_bytes: int = 512 << 20,
        progress: Callable[[int, int], None] | None = None,
        note: Callable[[str], None] | None = None,
        chains: str | None = None,
        weights: str | None = None,
        wait: float | None = None,
    ) -> Qwen35:
        """Opens a bundle (see `find_bundle`) on a device: auto, npu, emu, emu:key=value,..., a path or an
        index.

        `max_ctx` is how many tokens a conversation may hold, `progress(done, total)` is told of the weights'
        bytes as they load, `note(line)` of what a user should know (a picture that is made smaller).
        `chains` (auto, on, off), `weights` (auto, copy, map) and `wait` (seconds) say how the device is used:
        see qwen35.model.options; None takes QWEN35_CHAINS, QWEN35_WEIGHTS and QWEN35_WAIT, else the defaults.

        A device that is lost (removed, its driver reloaded) ends the answer with the binding's DeviceLost;
        the next use opens it again. Raises ModelError (BundleError among them), TokenizerError, UsageError,
        and the binding's XdnaError.
        """
        max_ctx = whole("max_ctx", max_ctx, 1, TRAINED_CTX, "--max-ctx")
        cache_bytes = whole("cache_bytes", cache_bytes, 0)
        called("progress", progress)
        called("note", note)
        imports("numpy", "qwen35.bundle", "qwen35.device", "qwen35.model.text", "qwen35.pictures")
        from qwen35.bundle import Bundle

        directory = find_bundle(path)
        bundle = Bundle.open(directory)
        from qwen35.device import open_device
        from qwen35.model.options import Options
        from qwen35.model.text import TextModel

        ways = Options.of(chains, weights, wait)

        def reopen() -> tuple[Any, TextModel]:
            again = open_device(bundle, same)
            try:
                made = TextModel(bundle, again, max_ctx, options=ways, progress=progress, note=note)
            except BaseException:
                again.close()
                raise
            if note is not None:
                note("the device was lost; it is open again")
            return again, made

        opened = open_device(bundle, device, note)
        same = device if opened.emulated else opened.path
        try:
            with Threads(1) as beside:
                reading = beside.submit(Tokenizer, bundle.tokenizer_path)
                model = TextModel(bundle, opened, max_ctx, options=ways, progress=progress, note=note)
                tokenizer = reading.result()
            pictures = None
            if bundle.config.vision is not None:
                from qwen35.pictures import Pictures

                pictures = Pictures(model, note=note)
            return cls(
                model,
                tokenizer,
                stop=bundle.config.stop,
                info=_describe(bundle, opened),
                vision=pictures,
                device=opened,
                pass_tokens=bundle.config.max_prompt,
                cache_bytes=cache_bytes,
                reopen=reopen,
            )
        except BaseException:
            opened.close()
            raise

    def __enter__(self) -> Qwen35:
        self.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees the model and closes the device, once the step that runs is over. Later calls do nothing.

        Raises UsageError from inside a step (a signal handler, the `progress` of a picture).
        """
        if self._closed:
            return
        self.session.turns.close()
        self._turn.kept = None
        self._close_parts()
        self._closed = True

    def _close_parts(self) -> None:
        if self.session.cache is not None:
            self.session.cache.clear()
        with contextlib.ExitStack() as all_of_them:
            for part in (self.device, self.model, self.vision):
                close = getattr(part, "close", None)
                if close is not None:
                    all_of_them.callback(close)

    def _failed(self, error: Exception) -> None:
        if self._reopen is not None:
            from amdxdna.errors import DeviceLost

            if isinstance(error, DeviceLost):
                self.session.mend = self._recover

    def _recover(self) -> None:
        """Opens the device again. Kept prefixes are gone; answers under way, conversations and pictures stay.

        States are host memory, so what a suspended answer keeps goes on with the new model.
        """
        assert self._reopen is not None
        with self.session.turns.alone():
            if self.session.mend is None:
                return
            self.session.turns.suspend(self.model)
            # A device that is gone refuses to take things back, which is not news.
            with contextlib.suppress(Exception):
                self._close_parts()
            before: Any = self.model
            self.device, model = self._reopen()
            model.follow(before)
            self.session.use(model)
            self.model = model
            if self.vision is not None:
                self.vision.use(model)
            self.session.mend = None

    def default_sampling(self, *, thinking: bool = False, images: bool = False) -> Sampling:
        """What `chat` uses when nothing is asked for: the bundle's own values, else the model card's."""
        return self.info.sampling or card_sampling(self.info.hidden, thinking=thinking, images=images)

    def chat(
        self,
        message: str,
        system: str | None = None,
        thinking: bool = False,
        max_new: int = 512,
        images: Any = (),
        stream: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Reply:
        """Answers one message by itself.

        The reply is made while it is read: iterate over it for the pieces, `str()` it for the whole. With
        `stream` it runs to the end at once, the callback given each piece of text. More options: `reply`'s.
        """
        text("message", message)
        text("system", system, none=True)
        called("stream", stream)
        messages = [user_message(message, images)]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        answer = self.reply(messages, thinking=thinking, max_new=max_new, **options)
        if stream is not None:
            for piece in answer:
                stream(piece)
        return answer

    def conversation(
        self, system: str | None = None, *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Conversation:
        """A conversation that remembers its turns."""
        return Conversation(self, system, tools=tools)

    def reply(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        max_new: int = 512,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] | None = None,
        json_schema: Any = None,
        allow_special: bool = False,
        loops: bool | int = True,
        keep: bool = True,
        begin: str = "",
        cancel: Callable[[], bool] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        done: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Answers a whole conversation (messages as in qwen35.template).

        `stop` strings (or one; 64 and 8,192 characters at most) end the answer and are not part of it (they
        do not apply to reasoning).
        `json_schema` makes the answer a JSON document that fits it (needs the llguidance package);
        `Reply.complete` says whether it came to its end. `allow_special` lets markers inside messages
        become control tokens.
        `loops` is after how many tokens of one pattern over and over an answer is ended (finish "loop"): True
        is LoopDetector's own number, False never. With `keep` states of the prompt are kept, and kept ones
        used: a prompt that was asked before, a conversation that goes on, the same system message and tools
        are not computed again. `begin` is text, markers included, that the answer is made to
        begin with; it is not part of the reply.
        `cancel()` is asked between tokens and passes, `progress(what, done, total)` told how far the prompt's
        tokens ("prompt") and a picture ("picture") are, `done(reply)` when the answer ends in any way.

        Raises TemplateError, ImageError, PromptTooLong, UsageError at once; what the device raises comes
        while the reply is read.
        """
        max_new, stop = whole("max_new", max_new, 1, option="--max-new"), stop_strings(stop)
        text("begin", begin)
        if sampling is not None and not isinstance(sampling, Sampling):
            raise wants("sampling", sampling, "give a Sampling or None")
        for name, function in (("cancel", cancel), ("progress", progress), ("done", done)):
            called(name, function)
        loops_after = _detector(loops)
        self.require_open()
        stats = Stats()
        pieces = render(messages, tools=tools, thinking=thinking)
        if begin:
            pieces.append(Control(begin))
        prompt = self._prompt(pieces, stats, allow_special, progress)
        total = len(prompt.ids)
        if total > self.model.max_ctx:
            raise PromptTooLong(total, self.model.max_ctx)
        chosen = sampling or self.default_sampling(thinking=thinking, images=bool(stats.image_tokens))
        constraint = None
        if json_schema is not None:
            constraint = self._json_grammars().constraint(json_schema, thinking=thinking)
        sampler = Sampler(chosen, prompt.ids, constraint)
        pool = getattr(self.device, "pool", None)  # of this device: a reply may outlive it
        swaps, loads = _swaps(pool)

        def end(reply: Reply) -> None:
            after = _swaps(pool)
            stats.swaps, stats.loads = after[0] - swaps, after[1] - loads
            if done is not None:
                done(reply)

        if not keep:
            prompt.borders, prompt.shared = (), 0
        run = generate(
            self.session,
            prompt,
            sampler,
            self.stop,
            max_new,
            stats=stats,
            loops=loops_after,
            cancel=cancel,
            progress=None if progress is None else lambda done, total: progress("prompt", done, total),
        )
        return Reply(
            run, self.tokenizer, thinking=thinking, stop=stop, sampler=sampler, tools=tools, done=end
        )

    def _prompt(
        self,
        pieces: list[Piece],
        stats: Stats,
        allow_special: bool,
        progress: Callable[[str, int, int], None] | None,
    ) -> Input:
        images = [piece.image for piece in pieces if isinstance(piece, ImageSlot)]
        if not images:
            prompt: Prompt = encode(
                pieces, self.tokenizer, allow_special=allow_special, limit=self.model.max_ctx
            )
            return Input(prompt.ids, prompt.borders, shared=prompt.shared)
        began = time.perf_counter()
        seen: list[Seen] = []
        for image in images:
            seen.append(self._pictures().look(image))
            if (tokens := sum(picture.tokens for picture in seen)) > self.model.max_ctx:
                raise PromptTooLong(tokens, self.model.max_ctx, least=True)
        stats.vision_s += time.perf_counter() - began
        counts = [picture.tokens for picture in seen]
        stats.image_tokens = sum(counts)
        prompt = encode(
            pieces,
            self.tokenizer,
            image_tokens=counts,
            allow_special=allow_special,
            limit=self.model.max_ctx,
        )
        keys = list(prompt.ids)
        for span in prompt.images:
            keys[span.start : span.start + span.count] = seen[span.index].keys()
        part = self._pictures().part(prompt.ids, prompt.images, seen, stats, progress)
        return Input(prompt.ids, prompt.borders, keys, part, prompt.shared)

    def check_image(self, image: Any) -> None:
        """Raises ImageError when `image` cannot be read, or when the bundle has no vision tower."""
        self.require_open()
        self._pictures().look(image)

    def _pictures(self) -> Pictures:
        if self.vision is None:
            where = str(self.info.bundle or self.info.name)
            raise ImageError("this bundle has no vision tower", where, "leave the image out")
        return self.vision

    def generate(
        self, ids: Sequence[int], max_new: int = 512, *, sampling: Sampling = GREEDY, stop: bool = True
    ) -> Generation:
        """Token ids after `ids`, greedy by default; with `stop` the model's stop tokens end it."""
        self.require_open()
        ids, max_new = self._ids(ids), whole("max_new", max_new, 1)
        if not isinstance(sampling, Sampling):
            raise wants("sampling", sampling, "give a Sampling")
        stops = self.stop if stop else ()
        return generate(self.session, ids, Sampler(sampling, ids), stops, max_new)

    def prefill(self, ids: Sequence[int] | Input) -> Any:
        """Logits (float32 [vocab]) after `ids` from an empty state; `decode` goes on from there.

        Answers in between change nothing; a second `prefill` begins anew, from whatever thread.
        """
        self.require_open()
        return self.session.prime(ids if isinstance(ids, Input) else Input(self._ids(ids)), turn=self._turn)

    def _ids(self, ids: Any) -> list[int]:
        found = token_ids("ids", ids, self._vocab)
        if not found:
            raise UsageError("ids is empty", "ids", "give at least one token id")
        return found

    @property
    def _vocab(self) -> int:
        return self.info.vocab or self.tokenizer.vocab_size

    def decode(self, token: int) -> Any:
        """Logits (float32 [vocab]) after one more token. Raises PromptTooLong when the context is full."""
        self.require_open()
        return self.session.decode(self._turn, whole("token", token, 0, self._vocab - 1))

    def _json_grammars(self) -> JsonGrammars:
        if self._grammars is None:
            from qwen35.structured import JsonGrammars

            self._grammars = JsonGrammars(self.tokenizer, self._vocab, self.stop)
        return self._grammars

    def require_open(self) -> None:
        """Raises Closed for a closed model and in a forked child; opens a lost device again."""
        self.session.turns.require_open()
        if self.session.mend is not None:
            self.session.mend()


def _swaps(pool: Any) -> tuple[int, int]:
    return getattr(pool, "swaps", 0), getattr(pool, "loads", 0)


def _detector(loops: bool | int) -> LoopDetector | None:
    if loops is True:
        return LoopDetector()
    if loops is False:
        return None
    if not isinstance(loops, int) or not 1 <= loops < 1 << 31:
        raise UsageError(f"loops is {loops!r}", "loops", "give True, False or a number of tokens")
    return LoopDetector(loops)


_SIZES = {1024: "Qwen3.5-0.8B", 2048: "Qwen3.5-2B", 2560: "Qwen3.5-4B", 4096: "Qwen3.5-9B"}


def _describe(bundle: Bundle, device: Any) -> Info:
    config, params = bundle.config, bundle.manifest.params
    name = params["name"].text if "name" in params else _SIZES.get(config.D, "Qwen3.5")
    return Info(
        name=name,
        bundle=bundle.path,
        builtin=bundle.path == DEFAULT_BUNDLE,
        device=device.node.path,
        emulated=device.node.emulated,
        contexts=len({spec.file for spec in bundle.xclbins.values()}),
        hidden=config.D,
        vocab=config.vocab,
        layers=config.layers,
        vision=config.vision is not None,
        weights=config.gemv_format,
        sampling=Sampling.parse(params["sampling"].text) if "sampling" in params else None,
    )
