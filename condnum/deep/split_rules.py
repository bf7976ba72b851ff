"""Which modules of a backbone are immunized: those that the caller names, else the last stage.

The paper immunizes the last stage of ResNet18 and the last block of the ViT (Sec. 5.2), what timm calls their
last stage; where timm names none, it is the last child of the trunk that holds a weight matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from condnum.errors import InvalidInputError, UnknownNameError


@dataclass(frozen=True)
class BackboneSplit:
    """Names of the trainable modules and of the head; every other module is frozen."""

    trainable: tuple[str, ...]  # module paths in the timm model
    head: str  # module path of the classifier


def split(model: nn.Module, trainable: str | Sequence[str] | None = None) -> BackboneSplit:
    """Choose the trainable part and the head of a timm model."""
    head = split_head(model)
    choices = f"Choices: {', '.join(split_choices(model)) or 'none; it has no module with weights'}."
    if trainable is None:
        part = _timm_stage(model, head) or _last_child(model, head)
        if part is None:
            raise InvalidInputError(
                f"{type(model).__name__} has no last stage to train; give the name of a part. {choices}"
            )
        return BackboneSplit((part,), head)
    names = (trainable,) if isinstance(trainable, str) else tuple(trainable)
    if not names:
        raise InvalidInputError(f"trainable is empty; expected at least one module. {choices}")
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise UnknownNameError("module", name, split_choices(model))
        if _holds(name, head) or _holds(head, name):
            raise InvalidInputError(
                f"module '{name}' contains or belongs to the head '{head}', which is always trained. "
                f"{choices}"
            )
        if not any(True for _ in modules[name].parameters()):
            raise InvalidInputError(f"module '{name}' has no parameters to train. {choices}")
    return BackboneSplit(names, head)


def split_head(model: nn.Module) -> str:
    """Return the module path of the classifier."""
    classifier = getattr(model, "get_classifier", lambda: None)()
    if not isinstance(classifier, nn.Module):
        count = len(classifier) if isinstance(classifier, tuple) else 0
        raise InvalidInputError(
            f"{type(model).__name__} has {count} classifiers; use the model without its distillation head."
        )
    return next(name for name, module in model.named_modules() if module is classifier)


def split_choices(model: nn.Module) -> list[str]:
    """Return the modules that can be trained, in order: children of the trunk, and blocks of its stacks."""
    names = []
    for name, child in trunk_children(model, split_head(model)):
        stack = child.named_children() if isinstance(child, nn.Sequential | nn.ModuleList) else ()
        for path, module in [(name, child), *((f"{name}.{key}", block) for key, block in stack)]:
            if any(True for _ in module.parameters()):
                names.append(path)
    return names


def block_names(model: nn.Module) -> list[str]:
    """Return the blocks of a net in order: the parts of its trunk that hold a weight matrix.

    Of a stack of blocks (a `Sequential` or `ModuleList` whose members with a matrix have parts of their own),
    wherever it lies, its members; of a single block (a DenseNet's `features`) its parts. The head is timm's
    classifier; of other nets a last child that is `Linear`.

    Examples:
        >>> stack = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)))
        >>> block_names(nn.Sequential(nn.Linear(2, 2), stack, nn.Linear(2, 2)))
        ['0', '1.0', '1.1']
    """

    def members(module: nn.Module) -> list[tuple[str, nn.Module]]:
        held = [(key, child) for key, child in module.named_children() if _has_matrix(child)]
        stack = isinstance(module, nn.Sequential | nn.ModuleList)
        return held if stack and held and all(any(child.children()) for _, child in held) else []

    def blocks(name: str, module: nn.Module) -> list[str]:
        if found := members(module):
            return [f"{name}.{key}" for key, _ in found]
        if any(members(part) for part in module.modules()):
            return [path for key, child in module.named_children() for path in blocks(f"{name}.{key}", child)]
        return [name] if _has_matrix(module) else []

    last = list(model.named_children())[-1:]
    head = split_head(model) if hasattr(model, "get_classifier") else ""
    if not head and last and isinstance(last[0][1], nn.Linear):
        head = last[0][0]
    found = [path for name, child in trunk_children(model, head) for path in blocks(name, child)]
    if len(found) == 1:
        inside = model.get_submodule(found[0]).named_children()
        found = [f"{found[0]}.{key}" for key, child in inside if _has_matrix(child)] or found
    return found


def _timm_stage(model: nn.Module, head: str) -> str | None:
    """The last stage by timm's own `feature_info`, where that is a module with a weight matrix."""
    stages = getattr(model, "feature_info", None)
    name = stages[-1].get("module", "") if isinstance(stages, list) and stages else ""
    module = dict(model.named_modules()).get(name)
    usable = name and module is not None and _has_matrix(module) and not _holds(name, head)
    return name if usable else None


def _last_child(model: nn.Module, head: str) -> str | None:
    """The last child of the trunk with a weight matrix; of a stack, its last such block."""
    candidates = [(name, child) for name, child in trunk_children(model, head) if _has_matrix(child)]
    if not candidates:
        return None
    name, child = candidates[-1]
    if isinstance(child, nn.Sequential | nn.ModuleList):
        name = f"{name}.{[key for key, block in child.named_children() if _has_matrix(block)][-1]}"
    return name


def trunk_children(model: nn.Module, head: str) -> list[tuple[str, nn.Module]]:
    """Return the named children that do not hold the head."""
    return [(name, child) for name, child in model.named_children() if not _holds(name, head)]


def _holds(outer: str, inner: str) -> bool:
    """Tell whether module path `inner` is `outer` or lies in it; the empty path is the whole model."""
    return not outer or inner == outer or inner.startswith(f"{outer}.")


def _has_matrix(module: nn.Module) -> bool:
    """Tell a linear map or convolution from norms and scales, whose parameters are vectors."""
    return any(parameter.ndim >= 2 for parameter in module.parameters())
