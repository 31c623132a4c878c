//! Writes pgoutput messages as a server does, for tests and benchmarks.

use crate::source::Relation;

/// One value of a row.
#[derive(Clone, Debug)]
pub enum Cell {
    Null,
    Text(Vec<u8>),
    UnchangedToast,
    Binary(Vec<u8>),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::Text(text.as_bytes().to_vec())
    }
}

impl From<Option<&str>> for Cell {
    fn from(text: Option<&str>) -> Self {
        text.map_or(Cell::Null, Cell::from)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(tag: u8) -> Self {
        Writer(vec![tag])
    }

    fn put(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    fn text(self, text: &str) -> Self {
        self.put(text).put([0])
    }

    fn row(self, cells: &[Cell]) -> Self {
        cells.iter().fold(self.put((cells.len() as u16).to_be_bytes()), |writer, cell| match cell {
            Cell::Null => writer.put(b"n"),
            Cell::UnchangedToast => writer.put(b"u"),
            Cell::Text(text) => writer.put(b"t").put((text.len() as i32).to_be_bytes()).put(text),
            Cell::Binary(bytes) => writer.put(b"b").put((bytes.len() as i32).to_be_bytes()).put(bytes),
        })
    }
}

pub fn begin(final_lsn: u64, commit_micros: i64, xid: u32) -> Vec<u8> {
    Writer::new(b'B').put(final_lsn.to_be_bytes()).put(commit_micros.to_be_bytes()).put(xid.to_be_bytes()).0
}

pub fn commit(commit_lsn: u64, end_lsn: u64, commit_micros: i64) -> Vec<u8> {
    Writer::new(b'C')
        .put([0])
        .put(commit_lsn.to_be_bytes())
        .put(end_lsn.to_be_bytes())
        .put(commit_micros.to_be_bytes())
        .0
}

pub fn relation(relation: &Relation) -> Vec<u8> {
    let schema = if relation.schema == "pg_catalog" { "" } else { &relation.schema };
    let start = Writer::new(b'R').put(relation.oid.to_be_bytes()).text(schema).text(&relation.name).put(b"d");
    let start = start.put((relation.columns.len() as u16).to_be_bytes());
    let columns = relation.columns.iter().fold(start, |writer, column| {
        let writer = writer.put([u8::from(column.key)]).text(&column.name);
        writer.put(column.type_oid.to_be_bytes()).put((-1i32).to_be_bytes())
    });
    columns.0
}

pub fn origin(commit_lsn: u64, name: &str) -> Vec<u8> {
    Writer::new(b'O').put(commit_lsn.to_be_bytes()).text(name).0
}

pub fn data_type(oid: u32, schema: &str, name: &str) -> Vec<u8> {
    Writer::new(b'Y').put(oid.to_be_bytes()).text(schema).text(name).0
}

pub fn insert(relation_oid: u32, row: &[Cell]) -> Vec<u8> {
    Writer::new(b'I').put(relation_oid.to_be_bytes()).put(b"N").row(row).0
}

/// `old`: `K` or `O` and its row.
pub fn update(relation_oid: u32, old: Option<(u8, &[Cell])>, new: &[Cell]) -> Vec<u8> {
    let mut writer = Writer::new(b'U').put(relation_oid.to_be_bytes());
    if let Some((kind, old)) = old {
        writer = writer.put([kind]).row(old);
    }
    writer.put(b"N").row(new).0
}

pub fn delete(relation_oid: u32, kind: u8, old: &[Cell]) -> Vec<u8> {
    Writer::new(b'D').put(relation_oid.to_be_bytes()).put([kind]).row(old).0
}

pub fn truncate(relation_oids: &[u32], options: u8) -> Vec<u8> {
    let start = Writer::new(b'T').put((relation_oids.len() as u32).to_be_bytes()).put([options]);
    relation_oids.iter().fold(start, |writer, oid| writer.put(oid.to_be_bytes())).0
}

pub fn logical(transactional: bool, lsn: u64, prefix: &str, content: &[u8]) -> Vec<u8> {
    let start = Writer::new(b'M').put([u8::from(transactional)]).put(lsn.to_be_bytes()).text(prefix);
    start.put((content.len() as i32).to_be_bytes()).put(content).0
}

pub fn stream_abort(xid: u32, subxid: u32) -> Vec<u8> {
    Writer::new(b'A').put(xid.to_be_bytes()).put(subxid.to_be_bytes()).0
}
