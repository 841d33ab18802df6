"""What one answer cost: token counts and seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Stats"]


@dataclass
class Stats:
    """Counts and wall-clock seconds of one answer.

    prompt_tokens   tokens of the prompt, cached ones included
    cached_tokens   of these, how many came from a kept state
    image_tokens    of the prompt's tokens, how many stand for images
    new_tokens      tokens of the answer, reasoning included, the stop token not
    reasoning_tokens  of these, how many were reasoning
    draft_passes    passes in which tokens ran ahead (AnswerOptions.draft)
    drafted_tokens  tokens that ran ahead, and
    accepted_tokens of these, how many the answer went on with
    vision_s        images decoded, resized and through the vision tower
    prefill_s       the prompt's tokens that were not cached
    first_token_s   from the question to the first token
    decode_s        from the first token to the last
    swaps, loads    hardware contexts given up and loaded during the answer
    finish          why it ended: stop (the model's own end), length (max_new), context (it is full), loop
                    (see LoopDetector), stop-string, cancel or error
    seed            what the sampler drew from (0 when greedy)
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0
    new_tokens: int = 0
    reasoning_tokens: int = 0
    draft_passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    vision_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    swaps: int = 0
    loads: int = 0
    finish: str = ""
    seed: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Decoded tokens a second; the first, which the prompt's pass gives, is left out."""
        return (self.new_tokens - 1) / self.decode_s if self.new_tokens > 1 and self.decode_s > 0 else 0.0

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prompt tokens that were computed, a second."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prefill_s if self.prefill_s > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Every field, and the two rates, for JSON; times rounded to a microsecond."""
        values = {k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(self).items()}
        values["tokens_per_s"] = round(self.tokens_per_s, 3)
        values["prompt_tokens_per_s"] = round(self.prompt_tokens_per_s, 3)
        return values

    def line(self) -> str:
        """One line for a person."""
        cached = f" ({self.cached_tokens:,} cached)" if self.cached_tokens else ""
        parts = [f"prompt {self.prompt_tokens:,} tokens{cached} in {_seconds(self.prefill_s)}"]
        if self.vision_s:
            parts.append(f"vision {_seconds(self.vision_s)}")
        parts.append(f"first token {_seconds(self.first_token_s)}")
        rate = f" ({self.tokens_per_s:.1f}/s)" if self.tokens_per_s else ""
        parts.append(f"answer {self.new_tokens:,} token{'s' * (self.new_tokens != 1)}{rate}")
        if self.draft_passes:
            drafts = f"{self.draft_passes} draft{'s' * (self.draft_passes != 1)}"
            parts.append(f"{self.accepted_tokens:,} of {self.drafted_tokens:,} tokens of {drafts}")
        if self.swaps:
            parts.append(f"{self.swaps} context swap{'s' * (self.swaps != 1)}")
        ends = {
            "length": "cut at --max-new",
            "context": "the context is full",
            "cancel": "stopped by you",
            "loop": "stopped: it repeated itself",
            "error": "ended by an error",
        }
        if self.finish in ends:
            parts.append(ends[self.finish])
        return ", ".join(parts)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.2f} s"
