//! The records that cross into Python: the dtypes SPAN, SCOPE and ATTRIBUTE of `otel_bridge/batch.py`.

pub const SPAN_SIZE: usize = 100;
pub const SCOPE_SIZE: usize = 12;
pub const ATTRIBUTE_SIZE: usize = 40;

/// `model.Reject`.
pub mod reject {
    pub const TRACE_ID_LENGTH: u8 = 1;
    pub const TRACE_ID_ZERO: u8 = 2;
    pub const SPAN_ID_LENGTH: u8 = 3;
    pub const SPAN_ID_ZERO: u8 = 4;
    pub const PARENT_ID_LENGTH: u8 = 5;
    pub const LINK_ID_LENGTH: u8 = 6;
    pub const TOO_DEEP: u8 = 7;
}

/// `model.ValueType`: the field numbers of AnyValue's oneof.
pub mod value_type {
    pub const EMPTY: u8 = 0;
    pub const STRING: u8 = 1;
    pub const BOOL: u8 = 2;
    pub const INT: u8 = 3;
    pub const DOUBLE: u8 = 4;
    pub const ARRAY: u8 = 5;
    pub const KVLIST: u8 = 6;
    pub const BYTES: u8 = 7;
}

/// A stretch of the request; requests are smaller than 4 GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    pub off: u32,
    pub len: u32,
}

impl Slice {
    #[inline]
    pub fn new(start: usize, end: usize) -> Self {
        Self {
            off: start as u32,
            len: (end - start) as u32,
        }
    }

    #[inline]
    pub fn of<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        &data[self.off as usize..self.off as usize + self.len as usize]
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub parent_id: [u8; 8],
    pub start: u64,
    pub end: u64,
    pub field: Slice,
    pub body: u32,
    pub name: Slice,
    pub state: Slice,
    pub resource: u32,
    pub scope: u32,
    pub flags: u32,
    pub events: u32,
    pub links: u32,
    pub kind: u8,
    pub status: u8,
    pub reject: u8,
}

impl Span {
    #[inline]
    pub fn bytes(&self) -> [u8; SPAN_SIZE] {
        let mut out = [0; SPAN_SIZE];
        out[0..16].copy_from_slice(&self.trace_id);
        out[16..24].copy_from_slice(&self.span_id);
        out[24..32].copy_from_slice(&self.parent_id);
        out[32..40].copy_from_slice(&self.start.to_le_bytes());
        out[40..48].copy_from_slice(&self.end.to_le_bytes());
        let words = [
            self.field.off,
            self.field.len,
            self.body,
            self.name.off,
            self.name.len,
            self.state.off,
            self.state.len,
            self.resource,
            self.scope,
            self.flags,
            self.events,
            self.links,
        ];
        put_words(&mut out[48..96], &words);
        out[96] = self.kind;
        out[97] = self.status;
        out[98] = self.reject;
        out
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    pub name: Slice,
    pub resource: u32,
}

impl Scope {
    pub fn bytes(&self) -> [u8; SCOPE_SIZE] {
        let mut out = [0; SCOPE_SIZE];
        put_words(&mut out, &[self.name.off, self.name.len, self.resource]);
        out
    }
}

/// Which group of `Batch.attributes` a record belongs to; the last byte of the record, 0 towards Python.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Group {
    #[default]
    Slot,
    Duplicate,
    Oversized,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attribute {
    pub value: i64,
    pub row: u32,
    pub content: Slice,
    pub key: Slice,
    pub field: Slice,
    pub slot: u16,
    pub value_type: u8,
    pub group: Group,
}

impl Attribute {
    #[inline]
    pub fn bytes(&self) -> [u8; ATTRIBUTE_SIZE] {
        let mut out = [0; ATTRIBUTE_SIZE];
        out[0..8].copy_from_slice(&self.value.to_le_bytes());
        let words = [
            self.row,
            self.content.off,
            self.content.len,
            self.key.off,
            self.key.len,
            self.field.off,
            self.field.len,
        ];
        put_words(&mut out[8..36], &words);
        out[36..38].copy_from_slice(&self.slot.to_le_bytes());
        out[38] = self.value_type;
        out
    }

    /// The KeyValue field of an encoded record: what a cut removes.
    pub fn field_of(record: &[u8; ATTRIBUTE_SIZE]) -> Slice {
        Slice {
            off: word(record, 28),
            len: word(record, 32),
        }
    }

    /// Row, value, content and type of an encoded record: what was sent.
    #[inline]
    pub fn sent_of(record: &[u8; ATTRIBUTE_SIZE]) -> (u32, i64, Slice, u8) {
        let value = u64::from(word(record, 0)) | u64::from(word(record, 4)) << 32;
        let content = Slice {
            off: word(record, 12),
            len: word(record, 16),
        };
        (word(record, 8), value as i64, content, record[38])
    }
}

#[inline]
fn word(record: &[u8; ATTRIBUTE_SIZE], at: usize) -> u32 {
    u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
}

#[inline]
fn put_words(out: &mut [u8], words: &[u32]) {
    for (place, word) in out.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}
