"""The three Transformers: an encoder, a language model, and the encoder-decoder of 2017."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normkit.errors import user_error
from normkit.placement import encoder_decoder_placements
from normkit.transformer import storage
from normkit.transformer.cache import Cache
from normkit.transformer.config import Config, configure
from normkit.transformer.embedding import Embedding
from normkit.transformer.from_hf import convert
from normkit.transformer.generation import Sampling, check_prompt, continue_with, evaluating
from normkit.transformer.linear import project
from normkit.transformer.positions import runs, token_positions
from normkit.transformer.stack import Stack

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Encoder", "LanguageModel", "Seq2Seq"]


class _Model(nn.Module):
    """What the three have in common: a description, and a file."""

    config: Config
    embedding: Embedding

    @property
    def more_options(self) -> dict[str, Any]:
        """Those that are not in ``config``."""
        return {}

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file, description included."""
        storage.save(self, path)

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]  # torch's own has no types
        """Weights that are moved off the meta device come apart; what is tied stays tied."""
        head, token = self._modules.get("head"), self.embedding.token
        is_tied = isinstance(head, nn.Linear) and token is not None and head.weight is token.weight
        result = super()._apply(fn, recurse)
        if is_tied and isinstance(head, nn.Linear) and token is not None:
            head.weight = token.weight
        return result

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The model that :meth:`save` has written."""
        loaded: Self = storage.load(cls, path)
        return loaded


class Encoder(_Model):
    """Every token sees every other.

    Shape: ids (B, T), or embeddings (B, T, dim) -> (B, T, dim).

    Ids are integers, and are looked up in a table of ``vocab`` rows. Embeddings are floating-point numbers of
    your own (patches of an image, windows of a series) and are taken as they are; positions, token types,
    ``embedding_norm`` and dropout are applied to both. With ``vocab=None`` there is no table, and only
    embeddings are taken.

    Args:
        options: those of :class:`normkit.transformer.Config`: vocab, dim, depth, heads, placement, norm, ...

    Example:
        >>> model = Encoder(vocab=100, dim=32, depth=2, heads=4, placement="post")
        >>> model(torch.randint(100, (2, 7))).shape
        torch.Size([2, 7, 32])
        >>> patches = nn.Linear(16, 32)(torch.randn(2, 7, 16))
        >>> Encoder(vocab=None, dim=32, depth=2, heads=4)(patches).shape
        torch.Size([2, 7, 32])
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.config = config = configure(options)
        self.embedding = Embedding(config)
        self.stack = Stack(config, config.placement, causal=False)

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            ids: integers (B, T), or embeddings (B, T, dim) in the model's dtype.
            mask: True for real tokens, (B, T).
            segments: several sequences packed into a row: a number each, (B, T).
            types: which of ``token_types`` each token is.
        """
        ids = self.embedding.check(ids, mask, segments=segments, types=types, vectors=True)
        if ids.is_floating_point():
            _same_dtype(self, ids)
        segments = None if segments is None else runs(segments)
        positions = token_positions(ids.shape[1], 0, mask, segments, ids.device)
        x = self.embedding(ids, positions, types, mask)
        return self.stack(x, mask=mask, positions=positions, segments=segments)

    @classmethod
    def from_hf(cls, model: nn.Module) -> Encoder:
        """An Encoder with the weights of a loaded Hugging Face model: BERT, without its pooler.

        Positions are counted from the first real token; Hugging Face counts padding on the left, too.
        Dropout comes along if the model has one rate for all.
        """
        made: Encoder = convert(model, "Encoder", cls)
        return made


class LanguageModel(_Model):
    """Every token sees those before it; the output scores the next one.

    Shape: ids (B, T) -> logits (B, T, vocab).

    Args:
        options: those of :class:`normkit.transformer.Config`.

    Example:
        >>> model = LanguageModel(vocab=100, dim=32, depth=2, heads=4, norm="rms", activation="swiglu")
        >>> model(torch.randint(100, (2, 7))).shape
        torch.Size([2, 7, 100])
        >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4).shape
        torch.Size([1, 7])
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.config = config = configure(options)
        self.embedding = Embedding(config)
        self.stack = Stack(config, config.placement, causal=True)
        self.head = _head(config, self.embedding)

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """
        Args:
            mask: True for real tokens, (B, T); with a cache, for all tokens so far.
            segments: several sequences packed into a row: a number each, (B, T).
            cache: from :meth:`cache`; ``ids`` are the tokens that are not in it yet.
        """
        return project(self.head, self.hidden(ids, mask=mask, segments=segments, cache=cache))

    def hidden(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """What the output projection reads."""
        past = 0 if cache is None else cache.length
        ids = self.embedding.check(ids, mask, past, segments=segments)
        if cache is not None:
            cache.check(ids.shape[0], segments)
        segments = None if segments is None else runs(segments)
        positions = token_positions(ids.shape[1], past, mask, segments, ids.device)
        x = self.embedding(ids, positions, mask=None if mask is None else mask[:, past:])
        return self.stack(x, mask=mask, positions=positions, segments=segments, cache=cache)

    def loss(self, ids: Tensor, *, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of each token after the first, given those before it, in nats.

        Padding and the first token of a segment are not predicted.
        """
        logits = self(ids, mask=mask, segments=segments)[:, :-1]
        targets = ids[:, 1:].long()
        real = None if mask is None else mask[:, 1:] & mask[:, :-1]
        if segments is not None:
            same = segments[:, 1:] == segments[:, :-1]
            real = same if real is None else real & same
        if real is not None:
            targets = targets.masked_fill(~real, -100)
        if targets.numel() == 0 or (real is not None and real.is_cpu and not bool(real.any())):
            raise user_error(
                f"loss got ids of shape {tuple(ids.shape)} in which nothing is to be predicted.",
                expected="a real token after another one",
            )
        half = logits.dtype in (torch.bfloat16, torch.float16)
        return F.cross_entropy((logits.float() if half else logits).flatten(0, 1), targets.flatten())

    @classmethod
    def from_hf(cls, model: nn.Module) -> LanguageModel:
        """A LanguageModel with the weights of a loaded Hugging Face model: GPT-2, Llama (SmolLM), Qwen3.

        Dropout comes along if the model has one rate for all.
        """
        made: LanguageModel = convert(model, "LanguageModel", cls)
        return made

    def cache(self, batch: int, context: int | None = None) -> Cache:
        """Memory for the keys and values of a batch."""
        return _cache(self.config, self.head.weight, batch, context)

    @torch.no_grad()
    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int,
        *,
        mask: Tensor | None = None,
        stop: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The prompt and its continuation, (B, T + max_new_tokens) or shorter if all rows have stopped.

        Args:
            mask: True for real tokens of the prompts; shorter ones are padded on the left.
            stop: a token that ends a row; what follows it is filled with it.
            temperature: 0 takes the likeliest token; 1 draws as the model says.
            top_k: draw among the k likeliest.
            top_p: draw among the likeliest that together have this probability.
        """
        ids = self.embedding.check(ids, mask)
        sampling = Sampling(temperature, top_k, top_p, generator)
        check_prompt(ids, max_new_tokens, mask, self.config.context)
        cache = self.cache(ids.shape[0], ids.shape[1] + max_new_tokens)

        def step(new: Tensor, seen: Tensor | None) -> Tensor:
            return project(self.head, self.hidden(new, mask=seen, cache=cache)[:, -1])

        with evaluating(self):
            return continue_with(step, ids, max_new_tokens, mask, stop, sampling)


class Seq2Seq(_Model):
    """An encoder reads the source; a decoder writes the target, and reads the source and what it has written.

    Shape: source (B, S), target (B, T) -> logits (B, T, vocab). Both share one vocabulary, and one embedding.

    Args:
        encoder_depth: layers of the encoder; ``depth`` if left out.
        options: those of :class:`normkit.transformer.Config`, for both.

    Example:
        >>> model = Seq2Seq(vocab=100, dim=32, depth=2, heads=4, placement="post", positions="sinusoidal")
        >>> model(torch.randint(100, (2, 7)), torch.randint(100, (2, 5))).shape
        torch.Size([2, 5, 100])

    Reference: Vaswani et al. 2017, arXiv:1706.03762.
    """

    def __init__(self, *, encoder_depth: int | None = None, **options: Any) -> None:
        super().__init__()
        self.config = config = configure(options)
        depth = config.depth if encoder_depth is None else encoder_depth
        reads, writes = encoder_decoder_placements(config.placement, depth, config.depth)
        self.embedding = Embedding(config)
        self.encoder = Stack(configure({**options, "depth": depth}), reads, causal=False)
        self.decoder = Stack(config, writes, causal=True, crosses=True)
        self.head = _head(config, self.embedding)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """The masks are True for real tokens."""
        _same_batch(source, target)
        memory = self.encode(source, mask=source_mask)
        return project(self.head, self._decode(target, memory, source_mask, target_mask, None))

    @property
    def more_options(self) -> dict[str, Any]:
        return {"encoder_depth": len(self.encoder.blocks)}

    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """What the decoder reads from."""
        source = self.embedding.check(source, mask)
        positions = token_positions(source.shape[1], 0, mask, None, source.device)
        x = self.embedding(source, positions, mask=mask)
        return self.encoder(x, mask=mask, positions=positions)

    def _decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Tensor | None,
        target_mask: Tensor | None,
        cache: Cache | None,
    ) -> Tensor:
        past = 0 if cache is None else cache.length
        target = self.embedding.check(target, target_mask, past)
        positions = token_positions(target.shape[1], past, target_mask, None, target.device)
        new = None if target_mask is None else target_mask[:, past:]
        x = self.embedding(target, positions, mask=new)
        reading: dict[str, Any] = {"mask": target_mask, "positions": positions, "cache": cache}
        return self.decoder(x, memory=memory, memory_mask=source_mask, **reading)

    @torch.no_grad()
    def generate(
        self,
        source: Tensor,
        start: Tensor,
        max_new_tokens: int,
        *,
        source_mask: Tensor | None = None,
        stop: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """``start``, (B, T), and its continuation; the rest as in :meth:`LanguageModel.generate`."""
        start = self.embedding.check(start)
        sampling = Sampling(temperature, top_k, top_p, generator)
        check_prompt(start, max_new_tokens, None, self.config.context)
        _same_batch(source, start)
        cache = _cache(self.config, self.head.weight, start.shape[0], start.shape[1] + max_new_tokens)

        def step(new: Tensor, seen: Tensor | None) -> Tensor:
            return project(self.head, self._decode(new, memory, source_mask, seen, cache)[:, -1])

        with evaluating(self):
            memory = self.encode(source, mask=source_mask)
            return continue_with(step, start, max_new_tokens, None, stop, sampling)


def _same_batch(source: Tensor, target: Tensor) -> None:
    if isinstance(source, Tensor) and isinstance(target, Tensor) and len(source) != len(target):
        raise user_error(
            f"Seq2Seq got {len(source)} sources and {len(target)} targets.", expected="one for each other"
        )


def _same_dtype(model: nn.Module, x: Tensor) -> None:
    """Embeddings are of a dtype that the model computes in; autocast takes any."""
    if torch.is_autocast_enabled(x.device.type) or any(p.dtype == x.dtype for p in model.parameters()):
        return
    own = next(model.parameters()).dtype
    raise user_error(
        f"An Encoder with weights of {own} got embeddings of {x.dtype}.",
        expected="one dtype for both",
        fix=f"embeddings.to({own}), or model.to({x.dtype}).",
    )


def _head(config: Config, embedding: Embedding) -> nn.Linear:
    if config.vocab is None or embedding.token is None:
        raise user_error(
            "A model that scores tokens got vocab=None.",
            expected="the number of tokens",
            fix="vocab=256, or an Encoder, which takes embeddings.",
        )
    head = nn.Linear(config.dim, config.vocab, bias=False)
    if config.tied:
        head.weight = embedding.token.weight
    else:
        nn.init.normal_(head.weight, std=config.dim**-0.5)
    return head


def _cache(config: Config, like: Tensor, batch: int, context: int | None) -> Cache:
    sizes = (
        config.depth,
        batch,
        config.key_heads,
        min(context or config.context, config.context),
        config.head_size,
    )
    return Cache(*sizes, dtype=like.dtype, device=like.device)
