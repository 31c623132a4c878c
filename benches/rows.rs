//! What a row costs in each pure stage of its way, without servers: frames, decoding, mapping and routing, acknowledging.
//! `cargo bench --bench rows` prints the time of each, per row by its throughput, and what has changed since the last run.

use std::hint::black_box;
use std::time::{Duration, SystemTime};

use bytes::{BufMut, Bytes, BytesMut};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use walpost::ack::AckTracker;
use walpost::config::Config;
use walpost::lsn::Lsn;
use walpost::outbox::Mapping;
use walpost::router::{Router, Token};
use walpost::source::decoder::Decoder;
use walpost::source::pgoutput::encode::{self, Cell};
use walpost::source::protocol::{Frame, MESSAGE_BYTES_MAX, take_message};
use walpost::source::{Column, Relation, Row, SourceEvent};

/// That of the binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Rows of one turn.
const ROWS: usize = 1_000;
const COLUMNS: [(&str, u32); 7] = [
    ("id", 20),
    ("message_id", 2950),
    ("aggregate_type", 25),
    ("aggregate_id", 25),
    ("event_type", 25),
    ("payload", 3802),
    ("headers", 3802),
];

fn relation() -> Relation {
    let columns = COLUMNS.map(|(name, type_oid)| Column { name: name.to_owned(), type_oid, key: name == "id" });
    Relation { oid: 16_400, schema: "public".to_owned(), name: "outbox_messages".to_owned(), columns: columns.into() }
}

/// pgoutput's messages of the rows, as a server sends them.
fn inserts() -> Vec<Bytes> {
    (0..ROWS)
        .map(|row| {
            let payload = format!(
                "{{\"order\": {row}, \"status\": \"placed\", \"note\": \"{}\"}}",
                "0123456789abcdef".repeat(12)
            );
            let id = format!("5f0c1f6e-0000-4000-8000-{row:012x}");
            let (number, key) = (row.to_string(), format!("order-{}", row * 7919 % 10_000));
            let cells = [number.as_str(), &id, "order", &key, "OrderPlaced", &payload, "{}"].map(Cell::from);
            encode::insert(16_400, &cells).into()
        })
        .collect()
}

/// A decoder that knows the relation, within a transaction.
fn decoder() -> Decoder {
    let mut decoder = Decoder::new();
    decoder.decode(encode::relation(&relation()).into()).expect("a relation");
    decoder.decode(encode::begin(1_000, 0, 7).into()).expect("a begin");
    decoder
}

fn rows() -> Vec<Row> {
    let mut decoder = decoder();
    let decoded = inserts().into_iter().map(|insert| match decoder.decode(insert) {
        Ok(Some(SourceEvent::Row(row))) => row,
        other => panic!("not a row: {other:?}"),
    });
    decoded.collect()
}

fn frames(criterion: &mut Criterion) {
    let mut stream = BytesMut::new();
    for insert in inserts() {
        stream.put_u8(b'd');
        stream.put_u32(u32::try_from(4 + 25 + insert.len()).expect("a small row"));
        stream.put_u8(b'w');
        stream.put_u64(1_000);
        stream.put_u64(2_000);
        stream.put_i64(0);
        stream.put_slice(&insert);
    }
    let mut group = criterion.benchmark_group("rows");
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("frame", |bencher| {
        bencher.iter_batched_ref(
            || BytesMut::from(&stream[..]),
            |buffer| {
                while let Some(message) = take_message(buffer, MESSAGE_BYTES_MAX).expect("whole messages") {
                    black_box(Frame::parse(message.body).expect("a frame"));
                }
            },
            BatchSize::LargeInput,
        );
    });
    let inserts = inserts();
    group.bench_function("decode", |bencher| {
        let mut decoder = decoder();
        bencher.iter_batched(
            || inserts.clone(),
            |inserts| {
                for insert in inserts {
                    black_box(decoder.decode(insert).expect("an insert"));
                }
            },
            BatchSize::LargeInput,
        );
    });
    let (rows, config) = (rows(), Config::default());
    group.bench_function("route", |bencher| {
        let mapping = Mapping::resolve(&relation(), &config.columns, None).expect("the columns fit");
        let mut router = Router::new(&config).expect("the template is good");
        router.bind(&relation(), &mapping).expect("the template fits");
        bencher.iter(|| {
            for (ordinal, row) in (0..).zip(&rows) {
                let token = Token { epoch: 1_700_000_000, commit_lsn: Lsn(1_000), ordinal };
                let message = mapping.message(row).expect("a message");
                black_box(router.route(&message, row, token).expect("a record"));
            }
        });
    });
    for (name, per_transaction) in [("ack, one row a transaction", 1), ("ack, 1,000 rows a transaction", ROWS)] {
        group.bench_function(name, |bencher| {
            let (mut tracker, mut lsn) = (AckTracker::new(Lsn(1)), 1);
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
            let mut tickets = Vec::with_capacity(ROWS);
            bencher.iter(|| {
                for _ in 0..ROWS / per_transaction {
                    lsn += 100;
                    tracker.begin(Lsn(lsn), at);
                    tickets.extend((0..).take(per_transaction).map(|ordinal| tracker.row(ordinal, 500)));
                    tracker.commit(Lsn(lsn + 50));
                }
                for ticket in tickets.drain(..) {
                    black_box(tracker.delivered(ticket));
                }
                assert!(tracker.is_idle());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, frames);
criterion_main!(benches);
