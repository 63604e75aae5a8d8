//! One pass over an ExportTraceServiceRequest: checked whole, and read into records.
//!
//! What a field means follows protobuf: fields come in any order, the last of a repeated scalar counts,
//! repeated messages of a singular field merge, and a known number with another wire type is unknown.

use crate::plan::{Answer, Place, Plan, OVERSIZED};
use crate::reader::{
    deeper, fault, tag, Cause, Read, Reader, Within, DEPTH, FIXED32, FIXED64, SIZED, VARINT,
};
use crate::records::{reject, value_type, Attribute, Group, Scope, Slice, Span};

/// What a request holds.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Encoded `records::Span`s.
    pub spans: Vec<u8>,
    pub scopes: Vec<Scope>,
    /// In the order of the request.
    pub attributes: Vec<Attribute>,
    /// Resources that have spans or wanted attributes; the others are not numbered.
    pub resources: u32,
    /// Strings that are not UTF-8.
    pub broken: Vec<Text>,
    /// Attributes whose array or list came in parts; a record of one has the last part alone.
    pub parted: Vec<Slice>,
}

impl Scanned {
    fn cleared(mut self) -> Self {
        self.spans.clear();
        self.scopes.clear();
        self.attributes.clear();
        self.broken.clear();
        self.parted.clear();
        self.resources = 0;
        self
    }

    /// Bytes of memory held.
    pub fn capacity(&self) -> usize {
        self.spans.capacity()
            + self.scopes.capacity() * size_of::<Scope>()
            + self.attributes.capacity() * size_of::<Attribute>()
            + self.broken.capacity() * size_of::<Text>()
            + self.parted.capacity() * size_of::<Slice>()
    }
}

/// A string, and the field it is the content of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    pub field: Slice,
    pub content: Slice,
}

/// Reads a request; the fault says where it is not one. `spare` gives its memory.
pub fn scan(data: &[u8], plan: &Plan, spare: Scanned) -> Read<Scanned> {
    if u32::try_from(data.len()).is_err() {
        return fault(data.len(), Cause::TooLarge);
    }
    let mut scan = Scan {
        plan,
        memos: Default::default(),
        last_row: vec![NONE; plan.slots],
        out: spare.cleared(),
        rows: 0,
    };
    scan.request(Reader::new(data, 0, data.len()))?;
    Ok(scan.out)
}

const NONE: u32 = u32::MAX;

struct Scan<'p> {
    plan: &'p Plan,
    /// For each place and position in an owner the key that stood there last, and what it answers.
    memos: [Vec<Memo>; Place::ALL.len()],
    /// For each exact slot the row that has it already.
    last_row: Vec<u32>,
    out: Scanned,
    rows: u32,
}

/// A key and what it answers.
struct Memo {
    answer: Answer,
    len: u8,
    name: [u8; MEMO_NAME],
}

/// Positions remembered; what stands behind them is looked up.
const MEMOS: usize = 32;
/// Longer keys are looked up.
const MEMO_NAME: usize = 59;

/// A resource or scope that gets its number when the first span or wanted attribute needs it: a request
/// can hold millions of empty ones.
#[derive(Clone, Copy)]
struct Lazy(Option<u32>);

/// Where the attributes of a message belong.
enum Owner<'o> {
    Span(Place),
    Resource(&'o mut Lazy),
    Scope(&'o mut Lazy, &'o mut Lazy),
}

/// What AnyValue's oneof holds.
#[derive(Clone, Copy, Default)]
struct Value {
    value_type: u8,
    /// An array or list that continues an earlier one: protobuf merges them.
    parted: bool,
    value: i64,
    content: Slice,
}

impl Value {
    #[inline]
    fn number(value_type: u8, value: i64) -> Self {
        Self {
            value_type,
            value,
            ..Self::default()
        }
    }

    #[inline]
    fn content(value_type: u8, content: Slice) -> Self {
        Self {
            value_type,
            content,
            ..Self::default()
        }
    }
}

impl Scan<'_> {
    fn request(&mut self, mut at: Reader) -> Read<()> {
        const RESOURCE_SPANS: u32 = tag(1, SIZED);
        while !at.done() {
            match at.tag()? {
                RESOURCE_SPANS => {
                    let inner = at.message().within("resource_spans")?;
                    self.resource_spans(inner, DEPTH - 1)
                        .within("resource_spans")?;
                }
                other => at.skip(other, DEPTH)?,
            }
        }
        Ok(())
    }

    fn resource_spans(&mut self, mut at: Reader, depth: u32) -> Read<()> {
        const RESOURCE: u32 = tag(1, SIZED);
        const SCOPE_SPANS: u32 = tag(2, SIZED);
        const SCHEMA_URL: u32 = tag(3, SIZED);
        let mut resource = Lazy(None);
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                RESOURCE => {
                    let inner = at.message().within("resource")?;
                    self.resource(inner, depth - 1, &mut resource)
                        .within("resource")?;
                }
                SCOPE_SPANS => {
                    let inner = at.message().within("scope_spans")?;
                    self.scope_spans(inner, depth - 1, &mut resource)
                        .within("scope_spans")?;
                }
                SCHEMA_URL => drop(self.text(&mut at, start).within("schema_url")?),
                other => at.skip(other, depth)?,
            }
        }
        Ok(())
    }

    fn resource(&mut self, mut at: Reader, depth: u32, resource: &mut Lazy) -> Read<()> {
        const ATTRIBUTES: u32 = tag(1, SIZED);
        const ENTITY_REFS: u32 = tag(3, SIZED);
        let mut nth = 0;
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                ATTRIBUTES => {
                    self.attribute(&mut at, start, depth, Owner::Resource(resource), nth)
                        .within("attributes")?;
                    nth += 1;
                }
                ENTITY_REFS => {
                    let inner = at.message().within("entity_refs")?;
                    self.entity_ref(inner, depth - 1).within("entity_refs")?;
                }
                other => at.skip(other, depth)?,
            }
        }
        Ok(())
    }

    fn entity_ref(&mut self, mut at: Reader, depth: u32) -> Read<()> {
        const SCHEMA_URL: u32 = tag(1, SIZED);
        const TYPE: u32 = tag(2, SIZED);
        const ID_KEYS: u32 = tag(3, SIZED);
        const DESCRIPTION_KEYS: u32 = tag(4, SIZED);
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                SCHEMA_URL | TYPE | ID_KEYS | DESCRIPTION_KEYS => drop(self.text(&mut at, start)?),
                other => at.skip(other, depth)?,
            }
        }
        Ok(())
    }

    fn scope_spans(&mut self, mut at: Reader, depth: u32, resource: &mut Lazy) -> Read<()> {
        const SCOPE: u32 = tag(1, SIZED);
        const SPANS: u32 = tag(2, SIZED);
        const SCHEMA_URL: u32 = tag(3, SIZED);
        let mut scope = Lazy(None);
        let mut name = Slice::default();
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                SPANS => {
                    let inner = at.message().within("spans")?;
                    let owner = (
                        self.resource_number(resource),
                        self.scope_number(&mut scope, resource),
                    );
                    self.span(inner, start, depth - 1, owner).within("spans")?;
                }
                SCOPE => {
                    let inner = at.message().within("scope")?;
                    self.scope(inner, depth - 1, (&mut scope, resource), &mut name)
                        .within("scope")?;
                }
                SCHEMA_URL => drop(self.text(&mut at, start).within("schema_url")?),
                other => at.skip(other, depth)?,
            }
        }
        if let Lazy(Some(number)) = scope {
            self.out.scopes[number as usize].name = name;
        }
        Ok(())
    }

    fn scope(
        &mut self,
        mut at: Reader,
        depth: u32,
        (scope, resource): (&mut Lazy, &mut Lazy),
        name: &mut Slice,
    ) -> Read<()> {
        const NAME: u32 = tag(1, SIZED);
        const VERSION: u32 = tag(2, SIZED);
        const ATTRIBUTES: u32 = tag(3, SIZED);
        let mut nth = 0;
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                NAME => *name = self.text(&mut at, start).within("name")?,
                VERSION => drop(self.text(&mut at, start).within("version")?),
                ATTRIBUTES => {
                    let owner = Owner::Scope(scope, resource);
                    self.attribute(&mut at, start, depth, owner, nth)
                        .within("attributes")?;
                    nth += 1;
                }
                other => at.skip(other, depth)?,
            }
        }
        Ok(())
    }

    /// A span nested too deep is a row without content; the rest of the request is not its fault.
    fn span(&mut self, at: Reader, start: usize, depth: u32, owner: (u32, u32)) -> Read<()> {
        let (attributes, broken, parted) = (
            self.out.attributes.len(),
            self.out.broken.len(),
            self.out.parted.len(),
        );
        let blank = Span {
            field: Slice::new(start, at.end()),
            body: at.pos as u32,
            resource: owner.0,
            scope: owner.1,
            ..Span::default()
        };
        let mut span = blank;
        match self.span_fields(at, depth, &mut span) {
            Ok(()) => {}
            Err(fault) if fault.cause == Cause::TooDeep => {
                self.out.attributes.truncate(attributes);
                self.out.broken.truncate(broken);
                self.out.parted.truncate(parted);
                span = Span {
                    reject: reject::TOO_DEEP,
                    ..blank
                };
            }
            Err(fault) => return Err(fault),
        }
        self.out.spans.extend_from_slice(&span.bytes());
        self.rows += 1;
        Ok(())
    }

    #[inline]
    fn span_fields(&mut self, mut at: Reader, depth: u32, span: &mut Span) -> Read<()> {
        const TRACE_ID: u32 = tag(1, SIZED);
        const SPAN_ID: u32 = tag(2, SIZED);
        const TRACE_STATE: u32 = tag(3, SIZED);
        const PARENT_SPAN_ID: u32 = tag(4, SIZED);
        const NAME: u32 = tag(5, SIZED);
        const KIND: u32 = tag(6, VARINT);
        const START: u32 = tag(7, FIXED64);
        const END: u32 = tag(8, FIXED64);
        const ATTRIBUTES: u32 = tag(9, SIZED);
        const EVENTS: u32 = tag(11, SIZED);
        const LINKS: u32 = tag(13, SIZED);
        const STATUS: u32 = tag(15, SIZED);
        const FLAGS: u32 = tag(16, FIXED32);
        let (mut trace_id, mut span_id, mut parent_id): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
        let mut bad_link = false;
        let mut nth = 0;
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                ATTRIBUTES => {
                    self.attribute(&mut at, start, depth, Owner::Span(Place::Span), nth)
                        .within("attributes")?;
                    nth += 1;
                }
                TRACE_ID => trace_id = bytes(&mut at).within("trace_id")?,
                SPAN_ID => span_id = bytes(&mut at).within("span_id")?,
                PARENT_SPAN_ID => parent_id = bytes(&mut at).within("parent_span_id")?,
                NAME => span.name = self.text(&mut at, start).within("name")?,
                KIND => span.kind = known(at.varint().within("kind")?, SPAN_KINDS),
                START => span.start = at.fixed64().within("start_time_unix_nano")?,
                END => span.end = at.fixed64().within("end_time_unix_nano")?,
                STATUS => {
                    let inner = at.message().within("status")?;
                    self.status(inner, depth - 1, &mut span.status)
                        .within("status")?;
                }
                FLAGS => span.flags = at.fixed32().within("flags")?,
                TRACE_STATE => span.state = self.text(&mut at, start).within("trace_state")?,
                EVENTS => {
                    span.events += 1;
                    let inner = at.message().within("events")?;
                    self.event(inner, depth - 1).within("events")?;
                }
                LINKS => {
                    span.links += 1;
                    let inner = at.message().within("links")?;
                    bad_link |= !self.link(inner, depth - 1).within("links")?;
                }
                other => at.skip(other, depth)?,
            }
        }
        span.trace_id = trace_id.try_into().unwrap_or_default();
        span.span_id = span_id.try_into().unwrap_or_default();
        span.parent_id = parent_id.try_into().unwrap_or_default();
        span.reject = if trace_id.len() != 16 {
            reject::TRACE_ID_LENGTH
        } else if span.trace_id == [0; 16] {
            reject::TRACE_ID_ZERO
        } else if span_id.len() != 8 {
            reject::SPAN_ID_LENGTH
        } else if span.span_id == [0; 8] {
            reject::SPAN_ID_ZERO
        } else if !matches!(parent_id.len(), 0 | 8) {
            reject::PARENT_ID_LENGTH
        } else if bad_link {
            reject::LINK_ID_LENGTH
        } else {
            0
        };
        Ok(())
    }

    fn status(&mut self, mut at: Reader, depth: u32, code: &mut u8) -> Read<()> {
        const MESSAGE: u32 = tag(2, SIZED);
        const CODE: u32 = tag(3, VARINT);
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                CODE => *code = known(at.varint().within("code")?, STATUS_CODES),
                MESSAGE => {
                    let content = self.text(&mut at, start).within("message")?;
                    let wanted = self.plan.status_message.filter(|_| content.len > 0);
                    if let Some(slot) = wanted {
                        let record = Attribute {
                            row: self.rows,
                            content,
                            field: Slice::new(start, at.pos),
                            value_type: value_type::STRING,
                            ..Attribute::default()
                        };
                        self.exact(slot, record);
                    }
                }
                other => at.skip(other, depth)?,
            }
        }
        Ok(())
    }

    fn event(&mut self, mut at: Reader, depth: u32) -> Read<()> {
        const NAME: u32 = tag(2, SIZED);
        const ATTRIBUTES: u32 = tag(3, SIZED);
        let mut nth = 0;
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                NAME => drop(self.text(&mut at, start).within("name")?),
                ATTRIBUTES => {
                    self.attribute(&mut at, start, depth, Owner::Span(Place::Event), nth)
                        .within("attributes")?;
                    nth += 1;
                }
                other => at.skip(other, depth)?,
            }
        }
        Ok(())
    }

    /// Whether the link's ids have lengths that decoders take; a link to nowhere (no id) is allowed.
    fn link(&mut self, mut at: Reader, depth: u32) -> Read<bool> {
        const TRACE_ID: u32 = tag(1, SIZED);
        const SPAN_ID: u32 = tag(2, SIZED);
        const TRACE_STATE: u32 = tag(3, SIZED);
        const ATTRIBUTES: u32 = tag(4, SIZED);
        let (mut trace_id, mut span_id) = (0, 0);
        let mut nth = 0;
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                TRACE_ID => trace_id = bytes(&mut at).within("trace_id")?.len(),
                SPAN_ID => span_id = bytes(&mut at).within("span_id")?.len(),
                TRACE_STATE => drop(self.text(&mut at, start).within("trace_state")?),
                ATTRIBUTES => {
                    self.attribute(&mut at, start, depth, Owner::Span(Place::Link), nth)
                        .within("attributes")?;
                    nth += 1;
                }
                other => at.skip(other, depth)?,
            }
        }
        Ok(matches!(trace_id, 0 | 16) && matches!(span_id, 0 | 8))
    }

    /// A record for an exact slot: of a row's repeated ones the first.
    #[inline]
    fn exact(&mut self, slot: u16, record: Attribute) {
        let last = &mut self.last_row[usize::from(slot)];
        let group = if *last == record.row {
            Group::Duplicate
        } else {
            Group::Slot
        };
        *last = record.row;
        self.out.attributes.push(Attribute {
            slot,
            group,
            ..record
        });
    }

    /// A KeyValue whose tag was just read at `start`, and the records that it answers; `nth` counts those
    /// of its owner.
    #[inline]
    fn attribute(
        &mut self,
        at: &mut Reader,
        start: usize,
        depth: u32,
        owner: Owner,
        nth: usize,
    ) -> Read<()> {
        let inner = at.message()?;
        let field = Slice::new(start, inner.end());
        let depth = deeper(depth, start)?;
        let place = match owner {
            Owner::Span(place) => place,
            Owner::Resource(_) => Place::Resource,
            Owner::Scope(..) => Place::Instrumentation,
        };
        let (key, answer, value) = match self.plain_key_value(inner, place, nth) {
            Some(plain) => plain,
            None => {
                let (key, value) = self.key_value(inner, depth)?;
                let name = inner.bytes(key.off as usize, (key.off + key.len) as usize);
                (key, self.plan.matcher(place).answer(name), value)
            }
        };
        let oversized = value.content.len as usize > self.plan.longer_than;
        if value.parted {
            self.out.parted.push(field);
        }
        if answer == Answer::default() && !oversized {
            return Ok(());
        }
        let row = match owner {
            Owner::Span(_) => self.rows,
            Owner::Resource(resource) => self.resource_number(resource),
            Owner::Scope(scope, resource) => self.scope_number(scope, resource),
        };
        let record = Attribute {
            value: value.value,
            row,
            content: value.content,
            key,
            field,
            value_type: value.value_type,
            ..Attribute::default()
        };
        if let Some(slot) = answer.exact {
            self.exact(slot, record);
        }
        if answer.prefixed {
            let name = inner.bytes(key.off as usize, (key.off + key.len) as usize);
            for slot in self.plan.matcher(place).prefixes(name) {
                self.out.attributes.push(Attribute { slot, ..record });
            }
        }
        if oversized {
            self.out.attributes.push(Attribute {
                slot: OVERSIZED,
                group: Group::Oversized,
                ..record
            });
        }
        Ok(())
    }

    /// A KeyValue as nearly all senders write it: a short key, then a value that is a scalar or a text; None
    /// for any other, and for one that is not well formed.
    #[inline(always)]
    fn plain_key_value(
        &mut self,
        at: Reader,
        place: Place,
        nth: usize,
    ) -> Option<(Slice, Answer, Value)> {
        const KEY: u8 = tag(1, SIZED) as u8;
        const VALUE: u8 = tag(2, SIZED) as u8;
        const STRING: u8 = tag(1, SIZED) as u8;
        const BOOL: u8 = tag(2, VARINT) as u8;
        const INT: u8 = tag(3, VARINT) as u8;
        const DOUBLE: u8 = tag(4, FIXED64) as u8;
        let rest = at.bytes(at.pos, at.end());
        let [KEY, key_len @ 0..=0x7f, rest @ ..] = rest else {
            return None;
        };
        let (name, rest) = rest.split_at_checked(usize::from(*key_len))?;
        let [VALUE, rest @ ..] = rest else {
            return None;
        };
        let rest = plain_sized(rest)?;
        let key = Slice::new(at.pos + 2, at.pos + 2 + name.len());
        let value = match rest {
            [STRING, rest @ ..] => {
                let text = plain_sized(rest)?;
                if !is_utf8(text) {
                    return None;
                }
                Value::content(
                    value_type::STRING,
                    Slice::new(at.end() - text.len(), at.end()),
                )
            }
            [INT, rest @ ..] => Value::number(value_type::INT, plain_varint(rest)? as i64),
            [BOOL, byte @ 0..=0x7f] => Value::number(value_type::BOOL, i64::from(*byte != 0)),
            [DOUBLE, bits @ ..] => Value::number(
                value_type::DOUBLE,
                i64::from_le_bytes(bits.try_into().ok()?),
            ),
            _ => return None,
        };
        Some((key, self.answer(name, place, nth)?, value))
    }

    /// What a key answers; None for one that is not UTF-8. Spans of one kind have the same keys at the same
    /// places, so the key that stood there last is tried first.
    #[inline(always)]
    fn answer(&mut self, name: &[u8], place: Place, nth: usize) -> Option<Answer> {
        if let Some(memo) = self.memos[place as usize].get(nth) {
            if same(&memo.name[..usize::from(memo.len)], name) {
                return Some(memo.answer);
            }
        }
        let answer = self.plan.matcher(place).answer(name);
        if !is_utf8(name) {
            return None;
        }
        if nth < MEMOS && name.len() <= MEMO_NAME {
            let mut memo = Memo {
                answer,
                len: name.len() as u8,
                name: [0; MEMO_NAME],
            };
            memo.name[..name.len()].copy_from_slice(name);
            let memos = &mut self.memos[place as usize];
            if nth < memos.len() {
                memos[nth] = memo;
            } else if nth == memos.len() {
                memos.push(memo);
            }
        }
        Some(answer)
    }

    #[inline]
    fn key_value(&mut self, mut at: Reader, depth: u32) -> Read<(Slice, Value)> {
        const KEY: u32 = tag(1, SIZED);
        const VALUE: u32 = tag(2, SIZED);
        let mut key = Slice::default();
        let mut value = Value::default();
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                KEY => key = self.text(&mut at, start).within("key")?,
                VALUE => {
                    let inner = at.message().within("value")?;
                    let depth = deeper(depth, start)?;
                    self.any_value(inner, depth, &mut value).within("value")?;
                }
                other => at.skip(other, depth)?,
            }
        }
        Ok((key, value))
    }

    #[inline]
    fn any_value(&mut self, mut at: Reader, depth: u32, value: &mut Value) -> Read<()> {
        const STRING: u32 = tag(1, SIZED);
        const BOOL: u32 = tag(2, VARINT);
        const INT: u32 = tag(3, VARINT);
        const DOUBLE: u32 = tag(4, FIXED64);
        const ARRAY: u32 = tag(5, SIZED);
        const KVLIST: u32 = tag(6, SIZED);
        const BYTES: u32 = tag(7, SIZED);
        while !at.done() {
            let start = at.pos;
            let tag = at.tag()?;
            *value = match tag {
                STRING => Value::content(
                    value_type::STRING,
                    self.text(&mut at, start).within("string_value")?,
                ),
                BOOL => {
                    let value = at.varint().within("bool_value")? != 0;
                    Value::number(value_type::BOOL, i64::from(value))
                }
                INT => Value::number(value_type::INT, at.varint().within("int_value")? as i64),
                DOUBLE => {
                    let bits = at.fixed64().within("double_value")?;
                    Value::number(value_type::DOUBLE, bits as i64)
                }
                ARRAY | KVLIST => {
                    let inner = at.message()?;
                    let depth = deeper(depth, start)?;
                    self.values(inner, depth, tag == KVLIST)?;
                    let found = (tag >> 3) as u8;
                    let parted = value.value_type == found;
                    let content = Slice::new(inner.pos, inner.end());
                    Value {
                        parted,
                        ..Value::content(found, content)
                    }
                }
                BYTES => {
                    let (from, to) = at.sized().within("bytes_value")?;
                    Value::content(value_type::BYTES, Slice::new(from, to))
                }
                other => {
                    at.skip(other, depth)?;
                    continue;
                }
            };
        }
        Ok(())
    }

    /// An ArrayValue or a KeyValueList: both hold messages in field 1.
    fn values(&mut self, mut at: Reader, depth: u32, keyed: bool) -> Read<()> {
        const VALUES: u32 = tag(1, SIZED);
        let name = if keyed {
            "kvlist_value.values"
        } else {
            "array_value.values"
        };
        while !at.done() {
            let start = at.pos;
            match at.tag()? {
                VALUES => {
                    let inner = at.message().within(name)?;
                    let depth = deeper(depth, start)?;
                    if keyed {
                        self.key_value(inner, depth).within(name)?;
                    } else {
                        self.any_value(inner, depth, &mut Value::default())
                            .within(name)?;
                    }
                }
                other => at.skip(other, depth)?,
            }
        }
        Ok(())
    }

    /// A string field whose tag was just read at `start`; noted when it is not UTF-8.
    #[inline]
    fn text(&mut self, at: &mut Reader, start: usize) -> Read<Slice> {
        let (from, to) = at.sized()?;
        let content = Slice::new(from, to);
        if !is_utf8(at.bytes(from, to)) {
            self.out.broken.push(Text {
                field: Slice::new(start, to),
                content,
            });
        }
        Ok(content)
    }

    #[inline]
    fn resource_number(&mut self, resource: &mut Lazy) -> u32 {
        *resource.0.get_or_insert_with(|| {
            self.out.resources += 1;
            self.out.resources - 1
        })
    }

    #[inline]
    fn scope_number(&mut self, scope: &mut Lazy, resource: &mut Lazy) -> u32 {
        if let Lazy(Some(number)) = *scope {
            return number;
        }
        let number = self.out.scopes.len() as u32;
        let resource = self.resource_number(resource);
        self.out.scopes.push(Scope {
            name: Slice::default(),
            resource,
        });
        scope.0 = Some(number);
        number
    }
}

const SPAN_KINDS: u64 = 6;
const STATUS_CODES: u64 = 3;

/// An enum's number, or 0 for one that OTLP does not define; protobuf keeps an enum's low 32 bits.
#[inline]
fn known(value: u64, count: u64) -> u8 {
    let value = value & u64::from(u32::MAX);
    if value < count {
        value as u8
    } else {
        0
    }
}

#[inline(always)]
fn bytes<'a>(at: &mut Reader<'a>) -> Read<&'a [u8]> {
    let (start, end) = at.sized()?;
    Ok(at.bytes(start, end))
}

/// The rest behind a short length that it has exactly.
#[inline(always)]
fn plain_sized(bytes: &[u8]) -> Option<&[u8]> {
    let (len, rest) = match bytes {
        [len @ 0..=0x7f, rest @ ..] => (usize::from(*len), rest),
        [low, high @ 0..=0x7f, rest @ ..] => {
            (usize::from(*low & 0x7f) | usize::from(*high) << 7, rest)
        }
        _ => return None,
    };
    (rest.len() == len).then_some(rest)
}

/// A varint that ends with the bytes.
#[inline(always)]
fn plain_varint(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > 10 {
        return None;
    }
    let (last, before) = bytes.split_last()?;
    let mut value = 0;
    for (index, byte) in before.iter().enumerate() {
        if *byte < 0x80 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
    }
    if *last >= 0x80 {
        return None;
    }
    Some(value | u64::from(*last) << (7 * before.len()))
}

/// Whether two short texts are equal, without a call.
#[inline(always)]
fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let (Some(tail), Some(other_tail)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) else {
        return one.iter().zip(other).all(|(byte, other)| byte == other);
    };
    let mut differ = u64::from_ne_bytes(*tail) ^ u64::from_ne_bytes(*other_tail);
    let (mut one, mut other) = (one, other);
    while let (Some((word, rest)), Some((other_word, other_rest))) =
        (one.split_first_chunk::<8>(), other.split_first_chunk::<8>())
    {
        differ |= u64::from_ne_bytes(*word) ^ u64::from_ne_bytes(*other_word);
        (one, other) = (rest, other_rest);
    }
    differ == 0
}

/// Most strings are short ASCII, for which this beats the vectorised validator's set-up.
#[inline(always)]
fn is_utf8(text: &[u8]) -> bool {
    (text.len() <= 256 && is_ascii(text)) || simdutf8::basic::from_utf8(text).is_ok()
}

#[inline(always)]
fn is_ascii(text: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut all = text
        .last_chunk::<8>()
        .map_or(0, |tail| u64::from_ne_bytes(*tail));
    let mut rest = text;
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        all |= u64::from_ne_bytes(*word);
        rest = after;
    }
    if text.len() < 8 {
        for byte in text {
            all |= u64::from(*byte);
        }
    }
    all & HIGH == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_resources_and_scopes_cost_no_memory() {
        let data = [0x0a, 2, 0x12, 0].repeat(1_000_000);
        let scanned = scan(&data, &Plan::new(&[], None), Scanned::default()).unwrap();
        assert_eq!((scanned.resources, scanned.capacity()), (0, 0));
    }

    #[test]
    fn short_texts_are_compared_and_checked_like_any() {
        let text: Vec<u8> = (1..60).collect();
        for len in 0..text.len() {
            let one = &text[..len];
            let copy = one.to_vec();
            assert!(same(one, &copy));
            assert!(is_ascii(one));
            for index in 0..len {
                let mut other = one.to_vec();
                other[index] |= 0x80;
                assert!(!same(one, &other));
                assert!(!is_ascii(&other));
            }
        }
    }

    #[test]
    fn plain_varints_are_what_the_reader_reads() {
        for shift in 0..64 {
            let mut bytes = Vec::new();
            crate::reader::put_varint(&mut bytes, u64::MAX >> shift);
            assert_eq!(plain_varint(&bytes), Some(u64::MAX >> shift));
            assert_eq!(plain_varint(&bytes[..bytes.len() - 1]), None);
            bytes.push(0);
            assert_eq!(plain_varint(&bytes), None);
        }
    }
}
