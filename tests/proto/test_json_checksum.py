"""The checksum in small JSON files: of what the file says, however it is laid out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.json_checksum import BadChecksum, opened, sealed

PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES = (
    PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=3), PLAIN, max_size=3)
)


@given(
    st.dictionaries(st.text(max_size=5).filter(lambda key: key != "crc32c"), VALUES, min_size=1),
    st.data(),
)
def test_only_the_same_value_has_the_checksum(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(
        sealed(value),
        indent=data.draw(st.sampled_from([None, 1])),
        ensure_ascii=data.draw(st.booleans()),
    )
    tree = json.loads(text)
    assert opened(tree) == value == opened(tree, required=False)
    key = data.draw(st.sampled_from(sorted(value)))
    with pytest.raises(BadChecksum):
        opened({**tree, key: [tree[key]]}, required=False)
    with pytest.raises(BadChecksum):
        opened({**tree, "crc32c": tree["crc32c"] ^ 1}, required=False)


def test_json_file_of_a_former_version_has_no_checksum() -> None:
    assert opened({"v": 1}, required=False) == {"v": 1}
    with pytest.raises(BadChecksum):
        opened({"v": 1})
    for junk in ([], None, "x"):
        with pytest.raises(ValueError, match="no JSON object"):
            opened(junk, required=False)
