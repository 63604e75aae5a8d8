//! Edits worked into a request: what nobody touched is copied, messages around an edit get new lengths.

use std::fmt;

use crate::reader::{put_varint, tag, varint_len, Fault, Reader, DEPTH, FIXED64, SIZED, VARINT};
use crate::records::{value_type, Slice};

/// Attributes to append, one to each of `rows`; see `batch.Insert`.
pub struct Insert<'a> {
    pub key: &'a [u8],
    /// Row numbers, u4 each.
    pub rows: &'a [u8],
    pub values: Values<'a>,
}

/// What an `Insert` appends; numbers are little-endian.
pub enum Values<'a> {
    /// i8 each.
    Ints(&'a [u8]),
    /// f8 each.
    Doubles(&'a [u8]),
    /// u1 each.
    Bools(&'a [u8]),
    /// The same text for every row.
    Const(&'a [u8]),
    /// Slices of the request: u4 offsets, u4 lengths.
    Slices(&'a [u8], &'a [u8]),
    /// Texts one after the other: u4 lengths.
    Texts(&'a [u8], &'a [u8]),
    /// Encoded fields of a Span, one after the other: u4 lengths.
    Raw(&'a [u8], &'a [u8]),
}

/// Other bytes in the place of a whole field; none to cut it.
#[derive(Clone, Copy)]
pub struct Swap<'a> {
    pub field: Slice,
    pub with: &'a [u8],
}

/// Everything noted on a batch.
#[derive(Default)]
pub struct Edits<'a> {
    pub rows: usize,
    /// One byte a row, not 0 where the span is left out; empty: none is.
    pub gone: &'a [u8],
    pub inserts: Vec<Insert<'a>>,
    pub cuts: Vec<Slice>,
    pub replacements: Vec<Swap<'a>>,
}

/// Edits that do not fit the request they are meant for: a mistake of the caller.
#[derive(Debug)]
pub struct Misfit(pub String);

impl fmt::Display for Misfit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<Box<Fault>> for Misfit {
    fn from(fault: Box<Fault>) -> Self {
        Self(fault.to_string())
    }
}

type Fit<T> = Result<T, Misfit>;

fn misfit<T>(text: String) -> Fit<T> {
    Err(Misfit(text))
}

/// The spliced request as pieces to be written one after the other.
pub struct Rope<'a> {
    data: &'a [u8],
    /// Bytes that stand nowhere else: tags, lengths, numbers, short texts.
    fresh: Vec<u8>,
    others: Vec<&'a [u8]>,
    pieces: Vec<Piece>,
    len: usize,
    /// Pieces before this one are not extended: the rope may be cut back to here.
    sealed: usize,
}

#[derive(Clone, Copy)]
struct Piece {
    source: Source,
    off: usize,
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Data,
    Fresh,
    Other(u32),
}

/// Where a rope can be cut back to.
struct Mark {
    pieces: usize,
    len: usize,
    sealed: usize,
}

/// Shorter texts are cheaper copied twice than kept as a piece.
const WORTH_A_PIECE: usize = 128;

impl<'a> Rope<'a> {
    fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            fresh: Vec::new(),
            others: Vec::new(),
            pieces: Vec::new(),
            len: 0,
            sealed: 0,
        }
    }

    /// Bytes in all.
    pub fn size(&self) -> usize {
        self.len
    }

    /// Writes everything; `out` has exactly `size` bytes.
    pub fn write(&self, mut out: &mut [u8]) {
        for (bytes, _) in self.parts() {
            let (here, rest) = out.split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            out = rest;
        }
    }

    /// The pieces in order; of those that are a stretch of the request also where it begins.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (&[u8], Option<usize>)> {
        self.pieces.iter().map(|piece| {
            let (source, off) = match piece.source {
                Source::Data => (self.data, Some(piece.off)),
                Source::Fresh => (&self.fresh[..], None),
                Source::Other(index) => (self.others[index as usize], None),
            };
            (&source[piece.off..piece.off + piece.len], off)
        })
    }

    #[inline]
    fn push(&mut self, source: Source, off: usize, len: usize) {
        if len == 0 {
            return;
        }
        self.len += len;
        if self.pieces.len() > self.sealed {
            if let Some(last) = self.pieces.last_mut() {
                if last.source == source && last.off + last.len == off {
                    last.len += len;
                    return;
                }
            }
        }
        self.pieces.push(Piece { source, off, len });
    }

    #[inline]
    fn copy(&mut self, start: usize, end: usize) {
        self.push(Source::Data, start, end - start);
    }

    /// Pushes what `write` appends to the fresh bytes.
    #[inline]
    fn fresh(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let off = self.fresh.len();
        write(&mut self.fresh);
        self.push(Source::Fresh, off, self.fresh.len() - off);
    }

    fn other(&mut self, bytes: &'a [u8]) {
        if bytes.len() < WORTH_A_PIECE {
            return self.fresh(|out| out.extend_from_slice(bytes));
        }
        let index = self.others.len() as u32;
        self.others.push(bytes);
        self.push(Source::Other(index), 0, bytes.len());
    }

    fn mark(&mut self) -> Mark {
        let mark = Mark {
            pieces: self.pieces.len(),
            len: self.len,
            sealed: self.sealed,
        };
        self.sealed = self.pieces.len();
        mark
    }

    fn cut_back(&mut self, mark: &Mark) {
        self.pieces.truncate(mark.pieces);
        self.len = mark.len;
        self.sealed = mark.sealed;
    }

    /// Leaves room for a length that is known only when its message is complete.
    fn begin(&mut self) -> Hole {
        let piece = self.pieces.len();
        self.pieces.push(Piece {
            source: Source::Fresh,
            off: usize::MAX,
            len: 0,
        });
        Hole {
            piece,
            len: self.len,
        }
    }

    fn finish(&mut self, hole: &Hole) {
        let off = self.fresh.len();
        put_varint(&mut self.fresh, (self.len - hole.len) as u64);
        let len = self.fresh.len() - off;
        self.pieces[hole.piece] = Piece {
            source: Source::Fresh,
            off,
            len,
        };
        self.len += len;
    }
}

struct Hole {
    piece: usize,
    len: usize,
}

/// Works the edits in.
pub fn splice<'a>(data: &'a [u8], edits: Edits<'a>) -> Fit<Rope<'a>> {
    let appends = Appends::new(edits.rows, edits.inserts)?;
    if !edits.gone.is_empty() && edits.gone.len() != edits.rows {
        return misfit(format!(
            "{} flags of left-out spans for {} rows",
            edits.gone.len(),
            edits.rows
        ));
    }
    let mut splice = Splice {
        data,
        rope: Rope::new(data),
        row: 0,
        rows: edits.rows,
        gone: edits.gone,
        appends,
        swaps: in_order(edits.cuts, edits.replacements),
        next: 0,
    };
    splice.rope.pieces.reserve(2 * edits.rows + 8);
    splice.rope.fresh.reserve(splice.appends.fresh_estimate());
    splice.request()?;
    if splice.row != splice.rows {
        return misfit(format!(
            "edits for {} spans, the request has {}",
            splice.rows, splice.row
        ));
    }
    if let Some(swap) = splice.swaps.get(splice.next) {
        return misfit(format!("no field begins at byte {}", swap.field.off));
    }
    Ok(splice.rope)
}

/// Cuts and replacements by place; where both name a field the cut stays, of two replacements the later.
fn in_order<'a>(cuts: Vec<Slice>, replacements: Vec<Swap<'a>>) -> Vec<Swap<'a>> {
    let mut swaps = replacements;
    swaps.reverse();
    let mut swaps: Vec<Swap> = cuts
        .into_iter()
        .map(|field| Swap { field, with: &[] })
        .chain(swaps)
        .collect();
    swaps.sort_by_key(|swap| swap.field.off);
    swaps.dedup_by_key(|swap| swap.field.off);
    swaps
}

/// What is appended to each row, in the order it was noted.
struct Appends<'a> {
    inserts: Vec<Prepared<'a>>,
    /// `items[starts[row]..starts[row + 1]]` are the row's: (insert, place in it).
    items: Vec<(u32, u32)>,
    starts: Vec<u32>,
}

struct Prepared<'a> {
    /// The KeyValue up to the length of its value, encoded.
    head: Vec<u8>,
    values: Values<'a>,
    /// Where each piece of a blob ends.
    ends: Vec<usize>,
}

impl<'a> Appends<'a> {
    fn new(rows: usize, inserts: Vec<Insert<'a>>) -> Fit<Self> {
        let total: usize = inserts.iter().map(|insert| insert.rows.len() / 4).sum();
        let mut starts = vec![0u32; if total == 0 { 0 } else { rows + 1 }];
        for row in inserts.iter().flat_map(|insert| words(insert.rows)) {
            match starts.get_mut(row as usize) {
                Some(count) if (row as usize) < rows => *count += 1,
                _ => return misfit(format!("row {row} of {rows}")),
            }
        }
        let mut sum = 0;
        for count in &mut starts {
            sum += *count;
            *count = sum;
        }
        // Filled from the back: each row's end moves down to its start.
        let mut items = vec![(0, 0); total];
        for (index, insert) in inserts.iter().enumerate().rev() {
            for (item, row) in words(insert.rows).enumerate().rev() {
                let place = &mut starts[row as usize];
                *place -= 1;
                items[*place as usize] = (index as u32, item as u32);
            }
        }
        let inserts = inserts.into_iter().map(Prepared::new).collect::<Fit<_>>()?;
        Ok(Self {
            inserts,
            items,
            starts,
        })
    }

    /// About how many bytes are written anew: a field's framing, a number or a short text.
    fn fresh_estimate(&self) -> usize {
        let heads = self
            .inserts
            .iter()
            .map(|insert| insert.head.len())
            .max()
            .unwrap_or(0);
        self.items.len() * (heads + 24)
    }

    #[inline]
    fn of(&self, row: usize) -> &[(u32, u32)] {
        match self.starts.get(row..row + 2) {
            Some(bounds) => &self.items[bounds[0] as usize..bounds[1] as usize],
            None => &[],
        }
    }
}

impl<'a> Prepared<'a> {
    fn new(insert: Insert<'a>) -> Fit<Self> {
        let count = insert.rows.len() / 4;
        let mut ends = Vec::new();
        let fits = match insert.values {
            Values::Ints(values) | Values::Doubles(values) => values.len() == 8 * count,
            Values::Bools(values) => values.len() == count,
            Values::Const(_) => true,
            Values::Slices(offs, lens) => offs.len() == 4 * count && lens.len() == 4 * count,
            Values::Texts(lens, blob) | Values::Raw(lens, blob) => {
                let mut end = 0;
                ends.extend(words(lens).map(|len| {
                    end += len as usize;
                    end
                }));
                lens.len() == 4 * count && end == blob.len()
            }
        };
        if !fits || insert.rows.len() % 4 != 0 {
            return misfit(format!(
                "the values of {:?} do not fit its {count} rows",
                String::from_utf8_lossy(insert.key)
            ));
        }
        let mut head = Vec::with_capacity(insert.key.len() + 8);
        put_varint(&mut head, u64::from(tag(1, SIZED)));
        put_varint(&mut head, insert.key.len() as u64);
        head.extend_from_slice(insert.key);
        head.push(VALUE);
        Ok(Self {
            head,
            values: insert.values,
            ends,
        })
    }

    fn piece(&self, blob: &'a [u8], item: usize) -> &'a [u8] {
        let start = if item == 0 { 0 } else { self.ends[item - 1] };
        &blob[start..self.ends[item]]
    }

    /// What is appended to one row, before its length is counted.
    #[inline]
    fn field(&self, item: usize, data: &'a [u8]) -> Fit<Field<'a>> {
        Ok(match self.values {
            Values::Ints(values) => Field::Varint(value_type::INT, word8(values, item)),
            Values::Bools(values) => Field::Varint(value_type::BOOL, u64::from(values[item] != 0)),
            Values::Doubles(values) => Field::Double(word8(values, item)),
            Values::Const(text) => Field::Text(text),
            Values::Texts(_, blob) => Field::Text(self.piece(blob, item)),
            Values::Raw(_, blob) => Field::Raw(self.piece(blob, item)),
            Values::Slices(offs, lens) => {
                let (off, len) = (word4(offs, item) as usize, word4(lens, item) as usize);
                match data.get(off..off + len) {
                    Some(text) => Field::Slice(off, text),
                    None => {
                        return misfit(format!(
                            "a slice of {len} bytes at byte {off} of {}",
                            data.len()
                        ))
                    }
                }
            }
        })
    }
}

enum Field<'a> {
    Varint(u8, u64),
    Double(u64),
    Text(&'a [u8]),
    Slice(usize, &'a [u8]),
    Raw(&'a [u8]),
}

const ATTRIBUTES: u8 = tag(9, SIZED) as u8;
const VALUE: u8 = tag(2, SIZED) as u8;

impl Field<'_> {
    /// The length of the AnyValue.
    #[inline]
    fn value_len(&self) -> usize {
        match self {
            Self::Varint(_, value) => 1 + varint_len(*value),
            Self::Double(_) => 9,
            Self::Text(text) | Self::Slice(_, text) => 1 + sized_len(text.len()),
            Self::Raw(_) => 0,
        }
    }

    /// The length of the whole field.
    #[inline]
    fn len(&self, head: &[u8]) -> usize {
        match self {
            Self::Raw(fields) => fields.len(),
            _ => 1 + sized_len(head.len() + sized_len(self.value_len())),
        }
    }

    /// The tag of the member of AnyValue.
    #[inline]
    fn member(&self) -> u8 {
        let (value_type, wire_type) = match self {
            Self::Varint(value_type, _) => (*value_type, VARINT),
            Self::Double(_) => (value_type::DOUBLE, FIXED64),
            Self::Text(_) | Self::Slice(..) | Self::Raw(_) => (value_type::STRING, SIZED),
        };
        tag(u32::from(value_type), wire_type) as u8
    }
}

#[inline]
fn sized_len(len: usize) -> usize {
    varint_len(len as u64) + len
}

struct Splice<'a> {
    data: &'a [u8],
    rope: Rope<'a>,
    row: usize,
    rows: usize,
    gone: &'a [u8],
    appends: Appends<'a>,
    swaps: Vec<Swap<'a>>,
    /// The first swap that is not done.
    next: usize,
}

/// What became of the spans below a message.
#[derive(Clone, Copy, Default)]
struct Fate {
    changed: bool,
    stayed: bool,
    left: bool,
}

impl Fate {
    fn and(&mut self, other: Self) {
        self.changed |= other.changed;
        self.stayed |= other.stayed;
        self.left |= other.left;
    }
}

#[derive(Clone, Copy)]
enum Level {
    Request,
    ResourceSpans,
    ScopeSpans,
}

impl<'a> Splice<'a> {
    fn request(&mut self) -> Fit<()> {
        self.level(Reader::new(self.data, 0, self.data.len()), Level::Request)
            .map(drop)
    }

    /// One of the three levels above spans: the fields that hold spans, and whatever else is there.
    fn level(&mut self, mut at: Reader<'a>, level: Level) -> Fit<Fate> {
        const RESOURCE_SPANS: u32 = tag(1, SIZED);
        const SCOPE_SPANS: u32 = tag(2, SIZED);
        const SPANS: u32 = tag(2, SIZED);
        let mut fate = Fate::default();
        while !at.done() {
            let start = at.pos;
            let tag = at.tag()?;
            let tag_end = at.pos;
            fate.and(match (level, tag) {
                (Level::Request, RESOURCE_SPANS) => {
                    self.spans_below(start, tag_end, at.message()?, Level::ResourceSpans)?
                }
                (Level::ResourceSpans, SCOPE_SPANS) => {
                    self.spans_below(start, tag_end, at.message()?, Level::ScopeSpans)?
                }
                (Level::ScopeSpans, SPANS) => {
                    let body = at.message()?;
                    self.span(start, tag_end, body)?
                }
                _ => {
                    at.skip(tag, DEPTH)?;
                    let changed = self.field(start, tag_end, at.pos, tag, DEPTH)?;
                    Fate {
                        changed,
                        ..Fate::default()
                    }
                }
            });
        }
        Ok(fate)
    }

    /// A ResourceSpans or ScopeSpans: left out when it lost all its spans, copied when nothing changed.
    fn spans_below(
        &mut self,
        start: usize,
        tag_end: usize,
        body: Reader<'a>,
        level: Level,
    ) -> Fit<Fate> {
        let mark = self.rope.mark();
        self.rope.copy(start, tag_end);
        let hole = self.rope.begin();
        let fate = self.level(body, level)?;
        if fate.left && !fate.stayed {
            self.rope.cut_back(&mark);
        } else if fate.changed {
            self.rope.finish(&hole);
        } else {
            self.rope.cut_back(&mark);
            self.rope.copy(start, body.end());
        }
        Ok(fate)
    }

    fn span(&mut self, start: usize, tag_end: usize, body: Reader<'a>) -> Fit<Fate> {
        let (row, end) = (self.row, body.end());
        self.row += 1;
        if row >= self.rows {
            return misfit(format!(
                "edits for {} spans, the request has more",
                self.rows
            ));
        }
        if self.gone.get(row).is_some_and(|&gone| gone != 0) {
            self.pass(end);
            return Ok(Fate {
                changed: true,
                stayed: false,
                left: true,
            });
        }
        let swapped = self.edited_before(end);
        if !swapped && self.appends.of(row).is_empty() {
            self.rope.copy(start, end);
            return Ok(Fate {
                changed: false,
                stayed: true,
                left: false,
            });
        }
        if swapped {
            self.rope.copy(start, tag_end);
            let hole = self.rope.begin();
            self.fields(body, DEPTH)?;
            self.append(row)?;
            self.rope.finish(&hole);
        } else {
            let added = self.appended_len(row)?;
            let data = self.data;
            self.rope.fresh(|out| {
                out.extend_from_slice(&data[start..tag_end]);
                put_varint(out, (end - body.pos + added) as u64);
            });
            self.rope.copy(body.pos, end);
            self.append(row)?;
        }
        Ok(Fate {
            changed: true,
            stayed: true,
            left: false,
        })
    }

    fn appended_len(&self, row: usize) -> Fit<usize> {
        let mut len = 0;
        for &(insert, item) in self.appends.of(row) {
            let prepared = &self.appends.inserts[insert as usize];
            len += prepared
                .field(item as usize, self.data)?
                .len(&prepared.head);
        }
        Ok(len)
    }

    fn append(&mut self, row: usize) -> Fit<()> {
        let Self {
            rope,
            appends,
            data,
            ..
        } = self;
        for &(insert, item) in appends.of(row) {
            let prepared = &appends.inserts[insert as usize];
            let field = prepared.field(item as usize, data)?;
            if let Field::Raw(fields) = field {
                rope.other(fields);
                continue;
            }
            let value_len = field.value_len();
            let size = prepared.head.len() + sized_len(value_len);
            rope.fresh(|out| {
                out.push(ATTRIBUTES);
                put_varint(out, size as u64);
                out.extend_from_slice(&prepared.head);
                put_varint(out, value_len as u64);
                out.push(field.member());
                match field {
                    Field::Varint(_, value) => put_varint(out, value),
                    Field::Double(bits) => out.extend_from_slice(&bits.to_le_bytes()),
                    Field::Text(text) | Field::Slice(_, text) => put_varint(out, text.len() as u64),
                    Field::Raw(_) => {}
                }
            });
            match field {
                Field::Slice(off, text) if text.len() >= WORTH_A_PIECE => {
                    rope.copy(off, off + text.len())
                }
                Field::Text(text) | Field::Slice(_, text) => rope.other(text),
                _ => {}
            }
        }
        Ok(())
    }

    /// The fields of any message with a swap somewhere below.
    fn fields(&mut self, mut at: Reader<'a>, depth: u32) -> Fit<()> {
        while !at.done() {
            let start = at.pos;
            let tag = at.tag()?;
            let tag_end = at.pos;
            at.skip(tag, depth)?;
            self.field(start, tag_end, at.pos, tag, depth)?;
        }
        Ok(())
    }

    /// Copies a field, or swaps it, or looks for the swap inside; whether anything changed.
    fn field(
        &mut self,
        start: usize,
        tag_end: usize,
        end: usize,
        tag: u32,
        depth: u32,
    ) -> Fit<bool> {
        if !self.edited_before(end) {
            self.rope.copy(start, end);
            return Ok(false);
        }
        let swap = self.swaps[self.next];
        let (off, len) = (swap.field.off as usize, swap.field.len as usize);
        if off == start && len == end - start {
            self.rope.other(swap.with);
            self.pass(end);
            return Ok(true);
        }
        let mut content = Reader::new(self.data, tag_end, end);
        if off < tag_end || tag & 7 != SIZED || depth == 0 {
            return misfit(format!("no field of {len} bytes begins at byte {off}"));
        }
        self.rope.copy(start, tag_end);
        let hole = self.rope.begin();
        self.fields(content.message()?, depth - 1)?;
        self.rope.finish(&hole);
        Ok(true)
    }

    /// Whether the next swap lies before `end`.
    #[inline]
    fn edited_before(&self, end: usize) -> bool {
        self.swaps
            .get(self.next)
            .is_some_and(|swap| (swap.field.off as usize) < end)
    }

    /// Leaves out the swaps before `end`: what they were meant for is gone.
    fn pass(&mut self, end: usize) {
        while self.edited_before(end) {
            self.next += 1;
        }
    }
}

#[inline]
pub fn words(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator + '_ {
    bytes
        .chunks_exact(4)
        .map(|chunk| u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]))
}

#[inline]
fn word4(bytes: &[u8], index: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[4 * index..4 * index + 4]);
    u32::from_le_bytes(word)
}

#[inline]
fn word8(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
    u64::from_le_bytes(word)
}
