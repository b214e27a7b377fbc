"""Word what click refuses as emu words its own errors: one line, with the nearest word there is."""

from __future__ import annotations

import re

import click

from emu.catalog.schema import nearest, unknown

_REFUSED = re.compile(r"(?P<value>.+?) is not (?:a valid|in the range|one of|a )")


def usage_line(error: click.ClickException) -> str:
    """Return `where: what must hold, got value; how to fix` for an error of click's."""
    ctx = getattr(error, "ctx", None)
    where = _where(ctx)
    if isinstance(error, click.NoSuchOption):
        return _no_such_option(error, ctx, where)
    if isinstance(error, click.MissingParameter):
        name = error.param.human_readable_name if isinstance(error.param, click.Argument) else _name(error)
        return f"{where}{name} is expected, got none; {_help(ctx)}"
    if isinstance(error, click.BadOptionUsage):
        return f"{where}{error.option_name}: a value is expected, got none"
    if isinstance(error, click.BadParameter):
        return _bad_value(error)
    command = re.match(r"No such command '(.*?)'", error.format_message())
    if command is not None and ctx is not None:
        return _no_such_command(command[1], ctx, where)
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.format_message())
    if extra is not None:
        return f"{where}no more words are expected, got {extra[1]!r}; {_help(ctx)}"
    return f"{where}{error.format_message().rstrip('.')}"


def is_help(error: click.ClickException) -> bool:
    """Tell whether this is no error, but the help of a group of commands that was called without one."""
    return isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ()))  # not in click 8.1


def _no_such_command(name: str, ctx: click.Context, where: str) -> str:
    commands = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
    close = nearest(name, commands, limit=2)
    known = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {', '.join(commands)}"
    return f"{where}unknown command {name!r}; {known}"


def _where(ctx: click.Context | None) -> str:
    """Name the subcommand: "train: "; nothing for `emu` itself."""
    names: list[str] = []
    while ctx is not None and ctx.parent is not None:
        names.insert(0, str(ctx.info_name))
        ctx = ctx.parent
    return f"{' '.join(names)}: " if names else ""


def _help(ctx: click.Context | None) -> str:
    return f"emu {_where(ctx).rstrip(': ')} --help tells more".replace("  ", " ")


def _no_such_option(error: click.NoSuchOption, ctx: click.Context | None, where: str) -> str:
    name = error.option_name
    if ctx is not None and isinstance(ctx.command, click.Group):
        for command in ctx.command.list_commands(ctx) if ctx.parent is not None else ():
            inner = ctx.command.get_command(ctx, command)
            if inner is not None and name in _options(inner):
                return f"{where}{name} goes with a subcommand; use emu {where.rstrip(': ')} {command} {name} ..."
    close = nearest(name, _options(ctx.command) if ctx is not None else error.possibilities or (), limit=1)
    hint = f"did you mean {close[0]!r}?" if close else _help(ctx)
    return f"{where}unknown option {name!r}; {hint}"


def _options(command: click.Command) -> list[str]:
    options = (each for each in command.params if isinstance(each, click.Option))
    return [word for option in options for word in (*option.opts, *option.secondary_opts)] + ["--help"]


def _bad_value(error: click.BadParameter) -> str:
    """Say what an option's or argument's kind of value is, and what was got."""
    name, refused = _name(error), _REFUSED.match(error.message)
    kind = error.param.type if error.param is not None else None
    if refused is None or kind is None:
        return f"{name}: {error.message.rstrip('.')}"
    value = refused["value"].strip("'\"")
    if isinstance(kind, click.Choice):
        return f"{name}: {unknown('choice', value, [str(each) for each in kind.choices])}"
    return f"{name}: {_expected(kind)} is expected, got {value!r}"


def _expected(kind: click.ParamType) -> str:
    whole = isinstance(kind, click.IntRange) or kind is click.INT
    number = "a whole number" if whole else "a number"
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return number if whole or kind is click.FLOAT else f"a {kind.name}"
    if kind.min is not None and kind.max is not None:
        return f"{number} from {kind.min:g} to {kind.max:g}"
    if kind.min is not None:
        return f"{number} {'above' if kind.min_open else 'of at least'} {kind.min:g}"
    return number if kind.max is None else f"{number} of at most {kind.max:g}"


def _name(error: click.BadParameter) -> str:
    """Return the option as it is written on the command line, or the argument's name."""
    param = error.param
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return str(param.name) if param is not None and param.name else "option"
