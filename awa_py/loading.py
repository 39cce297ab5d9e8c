"""Load the App that `module:attribute` names on a command line."""

import logging
import os
import sys
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from types import ModuleType

from awa_py.app import App
from awa_py.errors import AppNotFound, AwaError
from awa_py.text import describe_chain

logger = logging.getLogger("awa.loading")


def load_app(spec: str) -> App:
    """Return the App that `module:attribute` names. Modules in the working directory are found, too."""
    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        raise AppNotFound(f'APP "{spec}": write module:attribute, such as tasks:app')
    if module_name.endswith(".py") or os.sep in module_name:
        name = module_name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise AppNotFound(f'APP "{spec}": name the module, not its file: {name}:{attribute}')
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return _find(spec, _import(spec, module_name), attribute)


def _import(spec: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except AwaError:
        raise  # its message says what is wrong with the app
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotFound(f'APP "{spec}": there is no module "{error.name}" here or on PYTHONPATH') from None
        raise _failed(spec, name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(spec, name, error) from error


def _failed(spec: str, name: str, error: BaseException) -> AppNotFound:
    logger.debug("importing %s failed", name, exc_info=error)
    return AppNotFound(f'APP "{spec}": importing "{name}" failed at {_location(error)}: {describe_chain(error)}')


def _location(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "an unknown line" if trace is None else f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"


def _find(spec: str, module: ModuleType, attribute: str) -> App:
    try:
        found = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise AppNotFound(f'APP "{spec}": {module.__name__} has no "{attribute}"; {_hint(module, attribute)}') from None
    if not isinstance(found, App):
        raise AppNotFound(f'APP "{spec}" is a {type(found).__name__}, not an awa.App')
    return found


def _hint(module: ModuleType, attribute: str) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if apps:
        return f"did you mean {module.__name__}:{(get_close_matches(attribute, apps) or apps)[0]}?"
    return "it has no awa.App"
