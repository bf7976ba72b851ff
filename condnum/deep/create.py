"""Make a timm model with its weights, and say plainly what went wrong when it cannot be made."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import nn

from condnum.deep.split_rules import split_head
from condnum.deep.weights import fit_weights, read_weights
from condnum.errors import CondnumError, DataNotFoundError, InvalidInputError, UnknownNameError
from condnum.extras import require

#: What the head of a loaded model is: the file's, or drawn anew.
Classifier = Literal["loaded", "new"]


def create(
    name: str,
    *,
    pretrained: bool | str | os.PathLike[str],
    num_classes: int | None,
    classifier: Classifier,
    seed: int,
    arguments: Mapping[str, Any],
) -> nn.Module:
    """Create a timm model with weights from timm, from a file or drawn from a seed."""
    timm = require("timm", "deep")
    _check_name(timm, name)
    download = pretrained is True
    path = None if isinstance(pretrained, bool) else pretrained
    weights = None if path is None else read_weights(path)  # before the model: a wrong path fails at once
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # inside the fork: the caller's generator is left as it was
        try:
            model: nn.Module = timm.create_model(
                name, pretrained=download, num_classes=num_classes, **arguments
            )
        except (TypeError, AssertionError) as error:
            raise InvalidInputError(f"timm cannot build {name} with {dict(arguments)}: {error}.") from error
        except Exception as error:  # what a failed download raises depends on timm's hub client
            if not download or isinstance(error, CondnumError):
                raise
            raise DataNotFoundError(_no_download(name, error)) from error
    _check_head(model, name)
    if weights is not None:
        fit_weights(model, weights, new=split_head(model) if classifier == "new" else None)
    return model


def _check_name(timm: Any, name: str) -> None:
    """Raise if timm has no model of that name."""
    if "/" in name or ":" in name or timm.is_model(name.split(".")[0]):
        return  # hf-hub:owner/model and local-dir:… are resolved by timm itself
    near = get_close_matches(name, timm.list_models(), n=5, cutoff=0.4)
    raise UnknownNameError("timm model", name, [*near, "… see timm.list_models()"])


def _check_head(model: nn.Module, name: str) -> None:
    """Raise if the model cannot give features before its classifier."""
    forward_head = getattr(model, "forward_head", None)
    known = forward_head is not None and "pre_logits" in inspect.signature(forward_head).parameters
    if not known or not hasattr(model, "forward_features"):
        raise InvalidInputError(
            f"{name} does not offer features before its classifier (forward_features and "
            "forward_head(pre_logits=True)); choose another timm model."
        )


def _no_download(name: str, error: Exception) -> str:
    """Return the message for weights that timm could not get."""
    reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
    return (
        f"the pretrained weights of {name} cannot be had from timm ({type(error).__name__}: {reason}); "
        "fetch its model.safetensors on a machine with a network and pass pretrained=PATH."
    )
