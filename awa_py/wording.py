"""How awa puts things into words: ordinals, and errors with all their causes."""


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 11th, 111th, 121st."""
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def chain(error: BaseException, limit: int = 4000) -> str:
    """An error and the whole chain of its causes, the outermost first."""
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        parts.append(f"{type(current).__name__}: {current}" if str(current) else type(current).__name__)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return clean(" ← ".join(parts), limit)


def clean(text: str, limit: int = 4000) -> str:
    """Text that PostgreSQL can store, cut to a readable length."""
    storable = text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return storable if len(storable) <= limit else storable[: limit - 1] + "…"
