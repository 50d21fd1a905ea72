"""Writes conversations.parquet beside this file, as datasets' `to_parquet` does: make.py (needs pyarrow)."""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int64())]))
rows = [
    {"messages": [("user", "hi", None), ("assistant", "no", 0), ("user", "hi", None), ("assistant", "ho", 1)], "score": 0.5},
    {"messages": [("user", "é?", None), ("assistant", "€", None)], "score": float("nan")},
]
keys = ("role", "content", "weight")
table = pa.table(
    {
        "messages": pa.array([[dict(zip(keys, message)) for message in row["messages"]] for row in rows], messages),
        "score": pa.array([row["score"] for row in rows]),
        "tools": pa.array([None, "[]"]),
    }
)
path = pathlib.Path(__file__).with_name("conversations.parquet")
pq.write_table(table, path, compression="zstd", row_group_size=1)
