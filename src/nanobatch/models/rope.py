"""Rotary settings of a `config.json`, in the forms of transformers 4 and 5.

Version 4 writes `rope_theta` and a `rope_scaling` table, version 5 one `rope_parameters`
table. The meaning, defaults and precedence are those of transformers 5. Imports no torch.
"""

from typing import cast, get_args

from nanobatch.config import RopeConfig, RopeType
from nanobatch.models.config_fields import ConfigFields

DEFAULT_THETA = 10_000.0


def parse_rope(fields: ConfigFields, *, context: int) -> RopeConfig:
    """Return the rotary embedding that a configuration asks for.

    Args:
        fields: The whole configuration.
        context: `max_position_embeddings`.

    Raises:
        ModelError: A scaling that is not implemented, or one that lacks a field.
    """
    table = fields.table("rope_scaling")
    if table.is_empty():
        table = fields.table("rope_parameters")
    if table.has_table_inside():
        raise fields.error("rope_parameters that differ by layer type are not supported")
    for place in (fields, table):
        share = place.number("partial_rotary_factor", 1.0)
        if share != 1.0:
            raise fields.error(f"partial_rotary_factor {share:g} is not supported; supported: 1")
    theta = table.number("rope_theta", fields.number("rope_theta", DEFAULT_THETA))
    rope_type = _rope_type(fields, table)
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type == "linear":
        return RopeConfig(theta=theta, rope_type=rope_type, factor=table.number("factor"))
    original_context = fields.integer(
        "original_max_position_embeddings",
        table.integer("original_max_position_embeddings", context),
    )
    if rope_type == "llama3":
        return RopeConfig(
            theta=theta,
            rope_type=rope_type,
            factor=table.number("factor"),
            original_max_position_embeddings=original_context,
            low_freq_factor=table.number("low_freq_factor"),
            high_freq_factor=table.number("high_freq_factor"),
        )
    return RopeConfig(
        theta=theta,
        rope_type=rope_type,
        factor=table.number("factor", context / original_context),
        original_max_position_embeddings=original_context,
        # A zero means "not given", as in transformers.
        beta_fast=table.number("beta_fast", 0.0) or 32.0,
        beta_slow=table.number("beta_slow", 0.0) or 1.0,
        attention_factor=table.optional_number("attention_factor"),
        mscale=table.optional_number("mscale"),
        mscale_all_dim=table.optional_number("mscale_all_dim"),
        truncate=table.boolean("truncate", default=True),
    )


def _rope_type(fields: ConfigFields, table: ConfigFields) -> RopeType:
    name = table.get("rope_type", table.get("type", "default"))
    supported = get_args(RopeType)
    if name not in supported:
        raise fields.error(
            f"rotary embedding of type {name!r} is not supported",
            hint=f"supported: {', '.join(supported)}",
        )
    return cast(RopeType, name)
