"""`Qwen35`: load a bundle, ask it something, read the answer as it comes."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amdxdna.arguments import Uncopied
from amdxdna.signals import imports
from qwen35.arguments import MAX_NEW, TRAINED_CTX, called, text, token_ids, wants, whole
from qwen35.conversation import Conversation, Reply, user_message
from qwen35.engine import Generation, Input, Model, PrefixCache, Session, generate
from qwen35.errors import ImageError, UsageError
from qwen35.find import DEFAULT_BUNDLE, find_bundle
from qwen35.options import AnswerOptions
from qwen35.prompt import assemble
from qwen35.sampling import GREEDY, Sampler, Sampling, card_sampling
from qwen35.stats import Stats
from qwen35.template import Control, Data, ImageSlot, Piece, Tokens, render
from qwen35.threads import Threads
from qwen35.tokenizer import Tokenizer
from qwen35.turns import Turn

if TYPE_CHECKING:
    from qwen35.bundle import Bundle
    from qwen35.images.embed import Images
    from qwen35.model.text import TextModel
    from qwen35.structured import JsonGrammars

__all__ = ["Info", "Qwen35"]

Message = Mapping[str, Any]


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
        device = f"the NPU {self.device}"
        if self.emulated:
            device = "an emulated NPU" + (f", {self.device}" if os.sep in self.device else "")
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
        vision: Images | None = None,
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
        itself = weakref.ref(self)  # a forgotten model ends without the cycle collector

        def tell(error: Exception) -> None:
            model = itself()
            if model is not None:
                model._failed(error)

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
        steps: int | str | None = None,
    ) -> Qwen35:
        """Opens a bundle (see `find_bundle`) on a device: auto, npu, emu, emu:key=value,..., a path or an
        index.

        `max_ctx` is how many tokens a conversation may hold, `progress(done, total)` is told of the weights'
        bytes as they load, `note(line)` of what a user should know (a picture that is made smaller).
        `chains` (auto, on, off), `weights` (auto, copy, map), `wait` (seconds) and `steps` (auto, or a number
        of tokens) say how the device is used: see qwen35.model.options; None takes QWEN35_CHAINS and so on,
        else the defaults.

        A device that is lost (removed, its driver reloaded) ends the answer with the binding's DeviceLost;
        the next use opens it again. Raises ModelError (BundleError among them), TokenizerError, UsageError,
        and the binding's XdnaError.
        """
        max_ctx = whole("max_ctx", max_ctx, 1, TRAINED_CTX, "--max-ctx")
        cache_bytes = whole("cache_bytes", cache_bytes, 0)
        called("progress", progress)
        called("note", note)
        imports("numpy", "qwen35.bundle", "qwen35.device", "qwen35.model.text", "qwen35.images.embed")
        from qwen35.bundle import Bundle

        directory = find_bundle(path)
        bundle = Bundle.open(directory)
        from qwen35.device import open_device
        from qwen35.model.options import Options
        from qwen35.model.text import TextModel

        ways = Options.of(chains, weights, wait, steps)

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
        same = device if opened.node.emulated else opened.path
        try:
            with Threads(1) as beside:
                reading = beside.submit(Tokenizer, bundle.tokenizer_path)
                model = TextModel(bundle, opened, max_ctx, options=ways, progress=progress, note=note)
                tokenizer = reading.result()
            pictures = None
            if bundle.config.vision is not None:
                from qwen35.images.embed import Images

                pictures = Images(model, note=note)
            return cls(
                model,
                tokenizer,
                stop=bundle.config.eos_token_id,
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

    def __exit__(self, *_: object) -> None:
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
        *,
        images: Any = (),
        stream: Callable[[str], None] | None = None,
        options: AnswerOptions | None = None,
        **changes: Any,
    ) -> Reply:
        """Answers one message by itself. Options are `reply`'s.

        The reply is made while it is read: iterate over it for the pieces, `str()` it for the whole. With
        `stream` it runs to the end at once, the callback given each piece of text.
        """
        text("message", message)
        text("system", system, none=True)
        called("stream", stream)
        messages = [user_message(message, images)]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        answer = self.reply(messages, options, **changes)
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
        self, messages: Sequence[Message], options: AnswerOptions | None = None, **changes: Any
    ) -> Reply:
        """Answers a whole conversation (messages as in qwen35.template).

        `options` say how, and keyword arguments of the same names change them (qwen35.options.AnswerOptions:
        thinking, max_new, sampling, stop, tools, json_schema, ...).

        Raises TemplateError, ImageError, PromptTooLong, UsageError at once; what the device raises comes
        while the reply is read.
        """
        chosen = AnswerOptions.of(options, changes)
        self.require_open()
        pieces = render(messages, tools=chosen.tools, thinking=chosen.thinking)
        if chosen.begin:
            pieces.append(Control(chosen.begin))
        return self._answer(pieces, chosen)

    def complete(
        self, prompt: str | Sequence[int], options: AnswerOptions | None = None, **changes: Any
    ) -> Reply:
        """Goes on with a text, or token ids, as it is: no chat format around it. Options are `reply`'s.

        Of them `tools`, `begin` and `thinking` mean nothing here. Raises PromptTooLong and UsageError.
        """
        chosen = replace(AnswerOptions.of(options, changes), tools=None, begin="", thinking=False)
        self.require_open()
        if isinstance(prompt, str) and not prompt:
            raise UsageError("prompt is empty", "", "give a text, or token ids")
        whole_prompt = Data(prompt) if isinstance(prompt, str) else Tokens(self._ids(prompt, "prompt"))
        return self._answer([whole_prompt], chosen)

    def _answer(self, pieces: list[Piece], options: AnswerOptions) -> Reply:
        stats = Stats()
        prompt = assemble(
            pieces,
            self.tokenizer,
            self._pictures() if any(isinstance(piece, ImageSlot) for piece in pieces) else None,
            allow_special=options.allow_special,
            limit=self.model.max_ctx,
            stats=stats,
            progress=options.progress,
        )
        if not prompt.borders:  # no chat: the prompt itself may be asked again
            prompt.borders = (len(prompt.ids) - 1,)
        if not options.keep:
            prompt.borders, prompt.shared = (), 0
        thinking, progress = options.thinking, options.progress
        sampling = options.sampling or self.default_sampling(
            thinking=thinking, images=bool(stats.image_tokens)
        )
        constraint = None
        if options.json_schema is not None:
            constraint = self._json_grammars().constraint(options.json_schema, thinking=thinking)
        sampler = Sampler(sampling, prompt.ids, constraint)
        pool = getattr(self.device, "pool", None)  # of this device: a reply may outlive it
        swaps, loads = _swaps(pool)

        def end(reply: Reply) -> None:
            after = _swaps(pool)
            stats.swaps, stats.loads = after[0] - swaps, after[1] - loads
            if options.done is not None:
                options.done(reply)

        run = generate(
            self.session,
            prompt,
            sampler,
            self.stop,
            options.max_new,
            stats=stats,
            loops=options.loop_detector(),
            cancel=options.cancel,
            draft=options.draft,
            progress=None if progress is None else lambda done, total: progress("prompt", done, total),
        )
        return Reply(run, self.tokenizer, replace(options, done=end), sampler)

    def check_image(self, image: Any) -> None:
        """Raises ImageError when `images` cannot be read, or when the bundle has no vision tower."""
        self.require_open()
        self._pictures().read(image)

    def _pictures(self) -> Images:
        if self.vision is None:
            where = str(self.info.bundle or self.info.name)
            raise ImageError("this bundle has no vision tower", where, "leave the image out")
        return self.vision

    def generate(
        self, ids: Sequence[int], max_new: int = MAX_NEW, *, sampling: Sampling = GREEDY, stop: bool = True
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

    def _ids(self, ids: Any, name: str = "ids") -> list[int]:
        found = token_ids(name, ids, self._vocab)
        if not found:
            raise UsageError(f"{name} is empty", name, "give at least one token id")
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


def _describe(bundle: Bundle, device: Any) -> Info:
    config = bundle.config
    return Info(
        name=bundle.name,
        bundle=bundle.path,
        builtin=bundle.path == DEFAULT_BUNDLE,
        device=device.node.path,
        emulated=device.emulated,
        contexts=len({spec.file for spec in bundle.xclbins.values()}),
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        layers=config.num_hidden_layers,
        vision=config.vision is not None,
        weights=config.gemv_format,
        sampling=bundle.sampling,
    )
