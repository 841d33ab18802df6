"""The checks themselves: checksums, tokenizer, template, picture, tower, every reference's steps, a free run.

A step fails where the model's best token is not the float32 reference's, although the reference's logits of
the two are further apart than bf16 activations can move them: `SHARE` of the spread (the standard deviation
over the vocabulary) of the step's logits, and `MARGIN` at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from qwen35.bundle.errors import BundleError
from qwen35.check.findings import Finding
from qwen35.engine import Input
from qwen35.errors import QwenError
from qwen35.options import StepProgress
from qwen35.prompt import assemble
from qwen35.template import render

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.bundle import Bundle
    from qwen35.bundle.specs import Reference
    from qwen35.images.embed import Images, PromptImage

__all__ = ["MARGIN", "SHARE", "checks"]

MARGIN = 0.5
"""Logits. The published bundles' own check draws the line here; for references that record no spread too."""
SHARE = 0.25
"""Of the spread. What bf16 activations cost grows with the logits, as weights scale both: measured 0.010 to
0.016 of the spread (RMS a logit) over 4 layers, so about 0.05 over the 36 of the largest model; two logits
are compared, over hundreds of steps. At a spread of 2, as language models have it, it is `MARGIN`."""
COSINE = {"w8": 0.99, "bfp16x2": 0.998}
PATCH_ERROR = 1e-6


def checks(model: Qwen35, bundle: Bundle, progress: StepProgress | None = None) -> Iterator[Finding]:
    """Runs every check the bundle has records for; `progress(what, done, total)` is told of long ones.

    Raises BundleError for records or tensors that do not fit, and the binding's errors.
    """
    for line in bundle.unusual_lines:
        yield Finding("bundle", None, f"unusual: {line}")
    yield from _checksums(bundle, progress)
    yield from _tokenizer(model, bundle)
    if not bundle.references:
        yield Finding("references", None, "none recorded: nothing else can be proved")
    for reference in bundle.references:
        yield from _Run(model, bundle, reference, progress).findings()


def _checksums(bundle: Bundle, progress: StepProgress | None) -> Iterator[Finding]:
    """A defect too small to show in an answer shows here; that bytes are as exported proves nothing else."""
    if not bundle.sums:
        return
    step = None if progress is None else lambda done, total: progress("bytes", done, total)
    try:
        count = bundle.verify(step)
    except BundleError as error:
        yield Finding("checksums", False, str(error))
        return
    text = f"every byte of {count} files is as exported"
    if bundle.unsummed:
        text += f"; of {len(bundle.unsummed)} others nothing is recorded"
    yield Finding("checksums", None, text, {"files": count, "unsummed": list(bundle.unsummed)})


def _tokenizer(model: Qwen35, bundle: Bundle) -> Iterator[Finding]:
    cases = bundle.tokcases
    if not cases:
        yield Finding("tokenizer", None, "no cases recorded")
        return
    wrong = [c for c in cases if tuple(model.tokenizer.encode(c.text, allow_special=True)) != c.ids]
    text = f"{len(cases) - len(wrong)} of {len(cases)} texts encode as recorded"
    if wrong:
        text += f"; first other: {wrong[0].text[:60]!r}"
    yield Finding("tokenizer", not wrong, text, {"cases": len(cases), "wrong": len(wrong)})


class _Run:
    """One reference run."""

    def __init__(
        self, model: Qwen35, bundle: Bundle, reference: Reference, progress: StepProgress | None
    ) -> None:
        self.model, self.bundle, self.reference, self.progress = model, bundle, reference, progress
        self.ids = [int(i) for i in self._tensor("ids")]
        self.tokens = [int(i) for i in self._tensor("tokens")]
        ids, logits = self._tensor("top_ids"), self._tensor("top_logits")
        steps, vocab = len(self.tokens), bundle.config.vocab_size
        if not steps or ids.size < 2 * steps or ids.size % steps or ids.size != logits.size:
            self._fail("top_ids", f"{ids.size} ids and {logits.size} logits for {steps} steps")
        if not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
            self._fail("top_ids", f"an id is outside the vocabulary of {vocab:,}")
        self.top_ids, self.top_logits = ids.reshape(steps, -1), logits.reshape(steps, -1)
        self.marks = np.full(steps, MARGIN)
        if f"ref.{reference.name}.spread" in bundle.tensors:
            spread = self._tensor("spread")
            if spread.size != steps or not (np.isfinite(spread) & (spread >= 0)).all():
                self._fail("spread", f"{spread.size} values, or one that is no spread, for {steps} steps")
            self.marks = np.maximum(MARGIN, SHARE * spread.astype(np.float64).ravel())

    def _tensor(self, name: str) -> NDArray[Any]:
        return self.bundle.tensors.get(f"ref.{self.reference.name}.{name}")

    def _fail(self, name: str, message: str) -> NoReturn:
        info = self.bundle.tensors.info(f"ref.{self.reference.name}.{name}")
        raise BundleError(
            self.bundle.tensors.index_path,
            info.line,
            f"tensor {info.name}: {message}",
            "export the bundle again with --refs",
        )

    def findings(self) -> Iterator[Finding]:
        seen, pictures = None, self.model.vision
        if self.reference.image:
            if pictures is None:
                yield self._finding("picture", False, "the bundle has no vision tower")
                return
            try:
                rgb = np.array(self._tensor("rgb"))
                seen = pictures.read(rgb)
            except QwenError as error:
                yield self._finding("picture", False, str(error))
                return
            yield from self._picture(seen, pictures)
        content: Any = self.reference.prompt
        if seen is not None:
            content = [{"image": rgb}, {"text": self.reference.prompt}]
        pieces = render([{"role": "user", "content": content}], thinking=self.reference.thinking)
        prompt = assemble(pieces, self.model.tokenizer, pictures, progress=self.progress)
        same = prompt.ids == self.ids
        yield self._finding(
            "prompt",
            same,
            f"{len(self.ids)} token ids "
            + ("as recorded" if same else f"recorded, ours are {len(prompt.ids)} and differ"),
        )
        if seen is not None and not same:
            return  # embeddings would land on other tokens
        given = Input(self.ids, part=prompt.part)
        yield from self._forced(given)
        yield self._free(given)

    def _finding(self, what: str, passed: bool | None, text: str, **values: Any) -> Finding:
        return Finding(f"{self.reference.name} {what}", passed, text, values)

    def _picture(self, seen: PromptImage, pictures: Images) -> Iterator[Finding]:
        grid = tuple(int(v) for v in self._tensor("grid"))
        patches = self._tensor("patches")
        if seen.grid != grid or seen.patches.size != patches.size:
            yield self._finding("picture", False, f"its patch grid is {seen.grid}, recorded {grid}")
            return
        worst = float(np.abs(seen.patches - patches.reshape(seen.patches.shape)).max())
        yield self._finding(
            "picture",
            worst <= PATCH_ERROR,
            f"patches differ by {worst:.1e} at most",
            largest_difference=worst,
        )
        want = self._tensor("vision").astype(np.float64).ravel()
        with self.model.session.turns.alone():
            got = pictures.embeddings(seen, self.progress).astype(np.float64).ravel()
        if got.size != want.size:
            yield self._finding("tower", False, f"{got.size} values, recorded {want.size}")
            return
        scale = np.sqrt((got @ got) * (want @ want))
        cosine = float(got @ want / scale) if scale else 0.0
        relative = float(np.sqrt(((got - want) ** 2).sum() / max((want**2).sum(), 1e-30)))
        passed = cosine >= COSINE[pictures.config.weights]
        text = f"cosine {cosine:.4f}, relative RMS {relative:.3f} against float32"
        yield self._finding("tower", passed, text, cosine=cosine, relative_rms=relative)

    def _forced(self, given: Input) -> Iterator[Finding]:
        """Every step with the reference's own tokens fed back."""
        logits = self.model.prefill(given)
        agree, largest, wild = 0, 0.0, 0
        near: list[float] = []
        far: list[float] = []
        for step, token in enumerate(self.tokens):
            if self.progress is not None:
                self.progress(self.reference.name, step, len(self.tokens))
            ids, top = self.top_ids[step], self.top_logits[step]
            finite = bool(np.isfinite(logits).all())
            wild += not finite
            largest = max(largest, float(np.abs(logits[ids] - top).max()) if finite else 0.0)
            if finite and int(np.argmax(logits)) == int(ids[0]):
                agree += 1
            else:
                margin = self._gap(step, int(np.argmax(logits)) if finite else -1)
                (far if margin >= self.marks[step] or not finite else near).append(margin)
            if step + 1 < len(self.tokens):
                logits = self.model.decode(token)
        flips = sorted(near + far, reverse=True)
        text = f"{agree} of {len(self.tokens)} steps choose float32's token"
        if flips:
            text += "; the others' margins: " + ", ".join(f"{m:.2f}" for m in flips[:8])
            text += f"; from {float(self.marks.min()):.2f} on it is a fault"
        yield self._finding("steps", not far, text, steps=len(self.tokens), agree=agree, margins=flips)
        text = f"differ by {largest:.2f} at most over the top {self.top_ids.shape[1]}"
        if wild:
            text = f"NaN or infinity at {wild} of {len(self.tokens)} steps"
        yield self._finding("logits", False if wild else None, text, largest_difference=largest)

    def _gap(self, step: int, token: int) -> float:
        """How far the reference's logit of `token` lies below its best; at least that of one not recorded."""
        at = np.flatnonzero(self.top_ids[step] == token)
        top = self.top_logits[step]
        return float(top[0] - top[at[0] if at.size else -1])

    def _free(self, given: Input) -> Finding:
        """The model's own greedy answer, up to where it leaves the reference's."""
        logits = self.model.prefill(given)
        for step, token in enumerate(self.tokens):
            own = int(np.argmax(logits))
            if own != token:
                margin = self._gap(step, own)
                return self._finding(
                    "free run",
                    margin < float(self.marks[step]),
                    f"leaves the reference at step {step + 1} of {len(self.tokens)}, margin {margin:.2f}",
                    same=step,
                    margin=margin,
                )
            if step + 1 < len(self.tokens):
                logits = self.model.decode(token)
        return self._finding(
            "free run", True, f"all {len(self.tokens)} tokens are the reference's", same=len(self.tokens)
        )
