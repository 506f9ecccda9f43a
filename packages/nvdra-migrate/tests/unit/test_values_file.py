"""What a values file may hold."""

import pytest
from nvdra_migrate import values_file


@pytest.mark.parametrize("value", ["1:" * 3_000 + "1", " 1:" * 2_000 + "1"])
@pytest.mark.parametrize("written", ["!!int '{}'", "!!float '{}'", '!!int "{}"'])
def test_a_number_has_a_bound_however_it_is_written(written: str, value: str) -> None:
    with pytest.raises(values_file.ValuesFileError, match="more than 4300 digits"):
        values_file.parse(f"a: {written.format(value)}\n".encode())


def test_a_text_may_look_like_a_number() -> None:
    assert values_file.parse(f"a: '{'1' * 5_000}'\n".encode()) == {"a": "1" * 5_000}
