"""The stack: attention, feed-forward, blocks, and the three models built of them."""

from normkit.transformer.attention import Attention
from normkit.transformer.cache import Cache
from normkit.transformer.config import Config
from normkit.transformer.feed_forward import FeedForward
from normkit.transformer.models import Encoder, LanguageModel, Seq2Seq
from normkit.transformer.stack import Block, Stack

__all__ = [
    "Attention",
    "Block",
    "Cache",
    "Config",
    "Encoder",
    "FeedForward",
    "LanguageModel",
    "Seq2Seq",
    "Stack",
]
