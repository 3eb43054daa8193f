"""What pyarrow sees of the Flight front. Arguments: its location."""
import datetime
import json
import sys

import pyarrow as pa
import pyarrow.flight as fl

client = fl.connect(sys.argv[1])
checks = 0


def same(name, want, got):
    global checks
    checks += 1
    if want != got:
        sys.exit(f"FAIL {name}: want <{want}> got <{got}>")
    print("ok  ", name)


def refused(name, text, call):
    try:
        call()
    except pa.ArrowException as e:
        same(name, True, text in str(e))
        return
    sys.exit(f"FAIL {name}: not refused")


def command(**c):
    return fl.FlightDescriptor.for_command(json.dumps(c))


def get(**c):
    return client.do_get(fl.Ticket(json.dumps(c)))


module = """
topic rides { ts: time, user: string, amount: float64, country: string?, qty: int32 } with key (user), format arrow, time ts, partitions 3
topic plain { ts: time, user: string, amount: float64, country: string?, qty: int32 } with key (user), time ts, partitions 3
"""
list(client.do_action(fl.Action("apply", json.dumps({"module": "py", "text": module}).encode())))
schema = pa.schema({"ts": pa.timestamp("us", "UTC"), "user": pa.string(), "amount": pa.float64(), "country": pa.dictionary(pa.int32(), pa.string()), "qty": pa.int32()})
n = 20_000
start = datetime.datetime(2024, 5, 6, tzinfo=datetime.timezone.utc)
batches = []
for at in range(0, n, 4000):
    rows = range(at, at + 4000)
    batches.append(pa.record_batch([
        pa.array([start + datetime.timedelta(seconds=i) for i in rows], schema.field("ts").type),
        pa.array([f"u{i % 97}" for i in rows]),
        pa.array([i / 2 for i in rows]),
        pa.array([None if i % 5 == 0 else ["DE", "FR"][i % 2] for i in rows]).dictionary_encode(),
        pa.array(rows, pa.int32()),
    ], schema=schema))
want = pa.Table.from_batches(batches)
for topic in "rides", "plain":
    there = client.get_schema(fl.FlightDescriptor.for_path("topic", topic)).schema
    same(f"{topic}: schema", ["ts", "user", "amount", "country", "qty"], there.names)
    writer, answers = client.do_put(fl.FlightDescriptor.for_path("topic", topic), schema)
    for i, b in enumerate(batches):
        writer.write_with_metadata(b, str(i).encode())
    writer.done_writing()
    got = {}
    while (a := answers.read()) is not None:
        a = json.loads(a.to_pybytes())
        got[a["id"]] = got.get(a["id"], 0) + a["last"] - a["first"] + 1
    writer.close()
    same(f"{topic}: every batch is acknowledged", {i: 4000 for i in range(5)}, got)
    info = client.get_flight_info(fl.FlightDescriptor.for_path("topic", topic))
    same(f"{topic}: endpoints and records", (3, n), (len(info.endpoints), info.total_records))
    table = pa.concat_tables(client.do_get(e.ticket).read_all() for e in info.endpoints).sort_by("qty")
    same(f"{topic}: rows come back", True, table.equals(want.cast(there)))
    offsets = []
    reader = get(topic=topic, partitions=[1], **{"from": 100, "to": 200})
    for chunk in reader:
        meta = json.loads(chunk.app_metadata.to_pybytes())
        same(f"{topic}: a batch says where it is", chunk.data.num_rows, meta["last"] - meta["first"] + 1)
        offsets += range(meta["first"], meta["last"] + 1)
    same(f"{topic}: offsets of a range", list(range(100, 200)), offsets)
    filtered = get(topic=topic, where='(country ?? "") == "FR" and qty < 100', select="user, half = amount / 2.0").read_all()
    halves = sorted(filtered["half"].to_pylist())
    same(f"{topic}: filter and columns", (["user", "half"], [i / 4 for i in range(100) if i % 5 and i % 2]), (filtered.column_names, halves))
    follow = get(topic=topic, follow=True, partitions=[0])
    same(f"{topic}: follow begins", True, next(follow).data.num_rows > 0)
    follow.cancel()

writer, reader = client.do_exchange(command(where="x > 1", select="y = x * x"))
numbers = pa.schema([pa.field("x", pa.int64(), nullable=False)])
writer.begin(numbers)
for xs in [[1, 2, 3], [0], [9]]:
    writer.write_with_metadata(pa.record_batch([pa.array(xs)], schema=numbers), b"e")
    same("exchange answers a batch", [x * x for x in xs if x > 1], reader.read_chunk().data["y"].to_pylist())
writer.done_writing()
writer.close()


def put(topic, table):
    w, _ = client.do_put(fl.FlightDescriptor.for_path("topic", topic), table.schema)
    w.write_table(table)
    w.close()


refused("another column is named", 'column 1 is "ts", not "user"', lambda: put("rides", pa.table({"user": ["a"]})))
refused("a topic that is not there", "E1001", lambda: get(topic="nothing").read_all())
refused("a column that is not there", "`nobody`", lambda: get(topic="rides", where="nobody == 1").read_all())
same("flights are listed", True, {"rides", "plain"} <= {f.descriptor.path[1].decode() for f in client.list_flights()})
print(f"pyarrow ok: {checks} checks")
