"""Names of the parts of a net: its head, its last stage, its blocks.

The paper immunizes the last stage of ResNet18 and the last block of the ViT (Sec. 5.2). timm says which that
is; in other nets it is the last of several stacks of modules, or the last member of the only one. Layers with
a matrix between it and the head belong to it.
"""

from collections.abc import Sequence

from torch import nn

from condnum.errors import InvalidInputError, UnknownNameError


def find_head(model: nn.Module) -> str:
    """Return the module path of the classifier: timm's, else a linear layer that ends the net; "" for none.

    Examples:
        >>> find_head(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.Flatten(), nn.Linear(8, 2))))
        '1.1'
    """
    if not hasattr(model, "get_classifier"):
        path, inside = "", [(name, child) for name, child in model.named_children() if _has_matrix(child)]
        while inside:
            name, last = inside[-1]
            path = f"{path}.{name}" if path else name
            if isinstance(last, nn.Linear):
                return path
            plain = isinstance(last, nn.Sequential) and not any(any(part.children()) for part in last)
            inside = (
                [(key, part) for key, part in last.named_children() if _has_matrix(part)] if plain else []
            )
        return ""
    classifier = model.get_classifier()  # type: ignore[operator]
    if not isinstance(classifier, nn.Module):
        count = len(classifier) if isinstance(classifier, tuple) else 0
        raise InvalidInputError(
            f"{type(model).__name__} has {count} classifiers; use the model without its distillation head."
        )
    return next(name for name, module in model.named_modules() if module is classifier)


def choose_trainable(model: nn.Module, head: str, trainable: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the modules to immunize: those that the caller names, else the last stage."""
    if trainable is None:
        part = _timm_stage(model, head) or last_stage(model, head)
        if not part:
            raise InvalidInputError(
                f"{type(model).__name__} has no last stage to train; give the name of a part."
            )
        return (part, *_behind(model, part, head))
    names = (trainable,) if isinstance(trainable, str) else tuple(trainable)
    if not names:
        raise InvalidInputError("trainable is empty; expected at least one module.")
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise UnknownNameError("module", name, [key for key, _ in trunk_children(model, head)])
        if _holds(name, head) or _holds(head, name):
            raise InvalidInputError(
                f"module '{name}' contains or belongs to the head '{head}', which is always trained."
            )
        if not any(True for _ in modules[name].parameters()):
            raise InvalidInputError(f"module '{name}' has no parameters to train.")
    return names


def trunk_children(model: nn.Module, head: str) -> list[tuple[str, nn.Module]]:
    """Return the named children that do not hold the head."""
    return [(name, child) for name, child in model.named_children() if not (head and _holds(name, head))]


def block_names(model: nn.Module) -> list[str]:
    """Return the modules behind which the depth of a net is looked at, in the order of definition.

    Of a stack of blocks (a `Sequential` or `ModuleList` whose members with a matrix have parts of their own),
    wherever it lies, its members; of a single block (a DenseNet's `features`) its parts. What holds the head
    is left out.

    Examples:
        >>> stack = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)))
        >>> block_names(nn.Sequential(nn.Linear(2, 2), stack, nn.Linear(2, 2)))
        ['0', '1.0', '1.1']
    """

    def members(module: nn.Module) -> list[tuple[str, nn.Module]]:
        held = [(key, child) for key, child in module.named_children() if _has_matrix(child)]
        return held if _is_stack(module) and held and all(any(child.children()) for _, child in held) else []

    def blocks(name: str, module: nn.Module) -> list[str]:
        if found := members(module):
            return [f"{name}.{key}" for key, _ in found]
        if any(members(part) for part in module.modules()):
            return [path for key, child in module.named_children() for path in blocks(f"{name}.{key}", child)]
        return [name] if _has_matrix(module) else []

    head = find_head(model)
    found = [path for name, child in trunk_children(model, head) for path in blocks(name, child)]
    if len(found) == 1:
        inside = model.get_submodule(found[0]).named_children()
        found = [f"{found[0]}.{key}" for key, child in inside if _has_matrix(child)] or found
    return found


def last_stage(model: nn.Module, head: str) -> str:
    """Return the last of several stacks of a kind side by side, or the last member of the only one.

    Examples:
        >>> stages = {name: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for name in "ab"}
        >>> last_stage(nn.ModuleDict(stages), ""), last_stage(stages["b"], "")
        ('b', '1')
    """
    path, module = "", model
    while True:
        inside = [
            (f"{path}.{key}" if path else key, child)
            for key, child in module.named_children()
            if _has_matrix(child) and not (head and _holds(f"{path}.{key}" if path else key, head))
        ]
        if not inside:
            return path
        done = path and _is_stack(module)
        path, module = inside[-1]
        several = sum(type(child) is type(module) for _, child in inside) > 1
        if done or (several and _is_stack(module)) or not any(_is_stack(part) for part in module.modules()):
            return path


def _timm_stage(model: nn.Module, head: str) -> str:
    """Return the last stage by timm's own `feature_info`, where that is a module with a weight matrix."""
    stages = getattr(model, "feature_info", None)
    name = stages[-1].get("module", "") if isinstance(stages, list) and stages else ""
    module = dict(model.named_modules()).get(name)
    usable = name and module is not None and _has_matrix(module) and not _holds(name, head)
    return name if usable else ""


def _behind(model: nn.Module, stage: str, head: str) -> list[str]:
    """Return what lies between the last stage and the head, where that has a matrix, such as `conv_head`.

    The norm that ends a ViT stays frozen: the paper trains the last block alone.
    """
    names = [name for name, _ in model.named_children()]
    first, last = (
        next((k for k, name in enumerate(names) if _holds(name, part)), 0) for part in (stage, head)
    )
    parts = {name: model.get_submodule(name) for name in names[first + 1 : last]}
    with_weights = [name for name, part in parts.items() if list(part.parameters())]
    return with_weights if any(map(_has_matrix, parts.values())) else []


def _is_stack(module: nn.Module) -> bool:
    """Tell modules in a row from a module with a forward pass of its own."""
    return isinstance(module, nn.Sequential | nn.ModuleList)


def _holds(outer: str, inner: str) -> bool:
    """Tell whether module path `inner` is `outer` or lies in it; the empty path is the whole model."""
    return not outer or inner == outer or inner.startswith(f"{outer}.")


def _has_matrix(module: nn.Module) -> bool:
    """Tell a linear map or convolution from norms and scales, whose parameters are vectors."""
    return any(parameter.ndim >= 2 for parameter in module.parameters())
