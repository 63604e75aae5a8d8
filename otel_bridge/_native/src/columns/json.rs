//! JSON walked in place: no document is built, strings are crossed at memchr's speed.
//!
//! Accepted is RFC 8259, with one leniency: control characters may stand in strings unescaped, as
//! truncating or hand-made serialisers leave them. Deeper nesting than `MAX_DEPTH` is malformed.

use memchr::memchr;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{any_value, Match, Slices};

pub const MAX_DEPTH: usize = 128;
/// `JsonPaths.text_bytes` of a text in which no path leads to a string.
const NOTHING: i64 = -1;
/// `JsonPaths.text_bytes` of a text that is no JSON.
pub const MALFORMED: i64 = -2;

/// What a matched value is; the numbers are shared with `columns.JsonType`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    String = 1,
    Number = 2,
    True = 3,
    False = 4,
    Null = 5,
    Object = 6,
    Array = 7,
}

/// One place in the trie of paths.
#[derive(Default)]
pub struct Node {
    members: Vec<(Vec<u8>, usize)>,
    items: Option<usize>,
    path: Option<usize>,
}

/// Paths like `messages[*].content[*].text`, compiled into a trie.
///
/// An object that a path passes through and whose member `type` is one of `unless_type` contributes
/// nothing: a blob's `content` is no text.
#[pyclass(frozen, module = "otel_bridge._native.wire")]
pub struct JsonPaths {
    nodes: Vec<Node>,
    count: usize,
    unless_type: Vec<Vec<u8>>,
}

const ROOT: usize = 0;

impl JsonPaths {
    fn compile(paths: &[String], unless_type: &[String]) -> Result<Self, String> {
        let mut made = Self {
            nodes: vec![Node::default()],
            count: paths.len(),
            unless_type: unless_type
                .iter()
                .map(|text| text.clone().into_bytes())
                .collect(),
        };
        for (number, path) in paths.iter().enumerate() {
            let mut at = ROOT;
            for part in path.split('.').filter(|part| !part.is_empty()) {
                let stars = part.matches("[*]").count();
                let name = part.trim_end_matches("[*]");
                if name.contains(['[', ']']) || part.len() != name.len() + 3 * stars {
                    return Err(format!(
                        "{path:?}: a path is members and [*], as in messages[*].content"
                    ));
                }
                if !name.is_empty() {
                    at = made.member_or_new(at, name.as_bytes());
                }
                for _ in 0..stars {
                    at = made.items_or_new(at);
                }
            }
            // Of two equal paths the first is the one that is reported.
            made.nodes[at].path.get_or_insert(number);
        }
        Ok(made)
    }

    fn member_or_new(&mut self, at: usize, name: &[u8]) -> usize {
        if let Some(found) = self.member(at, name) {
            return found;
        }
        self.nodes.push(Node::default());
        let new = self.nodes.len() - 1;
        self.nodes[at].members.push((name.to_vec(), new));
        new
    }

    fn items_or_new(&mut self, at: usize) -> usize {
        if let Some(found) = self.nodes[at].items {
            return found;
        }
        self.nodes.push(Node::default());
        let new = self.nodes.len() - 1;
        self.nodes[at].items = Some(new);
        new
    }

    pub fn member(&self, at: usize, name: &[u8]) -> Option<usize> {
        self.nodes[at]
            .members
            .iter()
            .find(|(key, _)| key == name)
            .map(|&(_, node)| node)
    }

    pub fn items(&self, at: usize) -> Option<usize> {
        self.nodes[at].items
    }

    pub fn path(&self, at: usize) -> Option<usize> {
        self.nodes[at].path
    }

    pub fn excludes(&self, kind: &[u8]) -> bool {
        self.unless_type.iter().any(|excluded| excluded == kind)
    }

    pub fn excludes_any(&self) -> bool {
        !self.unless_type.is_empty()
    }

    /// UTF-8 bytes of all strings that the paths lead to; NOTHING or MALFORMED where there is no such number.
    pub fn measure(&self, text: &[u8]) -> i64 {
        let mut sum = Sum::default();
        match Walk::new(self, text, &mut sum).document() {
            Err(Stop::Malformed) => MALFORMED,
            _ => sum.result(),
        }
    }
}

#[pymethods]
impl JsonPaths {
    #[new]
    #[pyo3(signature = (paths, unless_type))]
    fn new(paths: Vec<String>, unless_type: Vec<String>) -> PyResult<Self> {
        Self::compile(&paths, &unless_type).map_err(PyValueError::new_err)
    }

    /// UTF-8 bytes of all strings that the paths lead to, one i64 a text.
    fn text_bytes<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        offs: &[u8],
        lens: &[u8],
    ) -> Bound<'py, PyBytes> {
        let slices = Slices { data, offs, lens };
        let mut out = Vec::with_capacity(slices.len() * 8);
        for (_, text) in slices.iter() {
            out.extend_from_slice(&self.measure(text).to_le_bytes());
        }
        PyBytes::new(py, &out)
    }

    /// The same measure over AnyValue content: the values of an ArrayValue or KeyValueList message.
    fn any_value_bytes<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        offs: &[u8],
        lens: &[u8],
        kvlist: bool,
    ) -> Bound<'py, PyBytes> {
        let slices = Slices { data, offs, lens };
        let mut out = Vec::with_capacity(slices.len() * 8);
        for (_, message) in slices.iter() {
            let mut sum = Sum::default();
            let result = match any_value::walk(self, message, kvlist, &mut sum) {
                Ok(()) => sum.result(),
                Err(any_value::Malformed) => MALFORMED,
            };
            out.extend_from_slice(&result.to_le_bytes());
        }
        PyBytes::new(py, &out)
    }

    /// The first value at each path, texts × paths records; the walk ends when all are found.
    fn find<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        offs: &[u8],
        lens: &[u8],
    ) -> Bound<'py, PyBytes> {
        let slices = Slices { data, offs, lens };
        let mut out = Vec::with_capacity(slices.len() * self.count * 12);
        for (off, text) in slices.iter() {
            let mut found = First {
                matches: vec![Match::default(); self.count],
                missing: self.count,
            };
            // What stood before a break in the text counts: bodies are often captured only in part.
            let _ = Walk::new(self, text, &mut found).document();
            for mut one in found.matches {
                one.off += if one.kind == 0 { 0 } else { off as u32 };
                one.write(&mut out);
            }
        }
        PyBytes::new(py, &out)
    }
}

/// Who looks at the values that paths lead to.
pub trait Visit {
    fn value(&mut self, path: usize, value: Match, decoded_len: usize) -> Result<(), Stop>;
    /// The state to which `restore` can return.
    fn mark(&self) -> (i64, bool);
    fn restore(&mut self, mark: (i64, bool));
}

pub enum Stop {
    Malformed,
    Done,
}

#[derive(Default)]
pub struct Sum {
    total: i64,
    any: bool,
}

impl Sum {
    pub fn add(&mut self, bytes: usize) {
        self.total += bytes as i64;
        self.any = true;
    }

    fn result(&self) -> i64 {
        if self.any {
            self.total
        } else {
            NOTHING
        }
    }
}

impl Visit for Sum {
    fn value(&mut self, _path: usize, value: Match, decoded_len: usize) -> Result<(), Stop> {
        if value.kind == Kind::String as u8 {
            self.add(decoded_len);
        }
        Ok(())
    }

    fn mark(&self) -> (i64, bool) {
        (self.total, self.any)
    }

    fn restore(&mut self, mark: (i64, bool)) {
        (self.total, self.any) = mark;
    }
}

struct First {
    matches: Vec<Match>,
    missing: usize,
}

impl Visit for First {
    fn value(&mut self, path: usize, value: Match, _decoded_len: usize) -> Result<(), Stop> {
        if self.matches[path].kind == 0 {
            self.matches[path] = value;
            self.missing -= 1;
        }
        if self.missing == 0 {
            Err(Stop::Done)
        } else {
            Ok(())
        }
    }

    fn mark(&self) -> (i64, bool) {
        (0, false)
    }

    fn restore(&mut self, _mark: (i64, bool)) {}
}

/// A string as it stands in the text, without its quotes.
#[derive(Clone, Copy)]
struct Text {
    start: usize,
    end: usize,
    decoded_len: usize,
    escaped: bool,
}

struct Walk<'a, V> {
    paths: &'a JsonPaths,
    text: &'a [u8],
    at: usize,
    visit: &'a mut V,
}

impl<'a, V: Visit> Walk<'a, V> {
    fn new(paths: &'a JsonPaths, text: &'a [u8], visit: &'a mut V) -> Self {
        Self {
            paths,
            text,
            at: 0,
            visit,
        }
    }

    fn document(&mut self) -> Result<(), Stop> {
        self.value(Some(ROOT), 0)?;
        self.blanks();
        if self.at == self.text.len() {
            Ok(())
        } else {
            Err(Stop::Malformed)
        }
    }

    fn value(&mut self, node: Option<usize>, depth: usize) -> Result<(), Stop> {
        self.blanks();
        let start = self.at;
        let path = node.and_then(|node| self.paths.path(node));
        let mut decoded_len = 0;
        let mut escaped = false;
        let mut span = None;
        let kind = match self.peek().ok_or(Stop::Malformed)? {
            b'"' => {
                let text = self.string()?;
                (decoded_len, escaped) = (text.decoded_len, text.escaped);
                span = Some((text.start, text.end));
                Kind::String
            }
            b'{' => {
                self.object(node, depth)?;
                Kind::Object
            }
            b'[' => {
                self.array(node, depth)?;
                Kind::Array
            }
            b't' => self.literal(b"true", Kind::True)?,
            b'f' => self.literal(b"false", Kind::False)?,
            b'n' => self.literal(b"null", Kind::Null)?,
            _ => {
                self.number()?;
                // A number that the text ends with may have lost digits; one in brackets never ends a whole text.
                if matches!(self.peek(), Some(b'.' | b'e' | b'E'))
                    || (depth > 0 && self.peek().is_none())
                {
                    return Err(Stop::Malformed);
                }
                Kind::Number
            }
        };
        if let Some(path) = path {
            let (from, to) = span.unwrap_or((start, self.at));
            let value = Match {
                off: from as u32,
                len: (to - from) as u32,
                kind: kind as u8,
                escaped,
            };
            self.visit.value(path, value, decoded_len)?;
        }
        Ok(())
    }

    fn object(&mut self, node: Option<usize>, depth: usize) -> Result<(), Stop> {
        self.enter(depth)?;
        let mark = self.visit.mark();
        let guarded = node.is_some() && self.paths.excludes_any();
        let mut excluded = false;
        self.blanks();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return Err(Stop::Malformed);
            }
            let key = self.string()?;
            self.blanks();
            if !self.take(b':') {
                return Err(Stop::Malformed);
            }
            if guarded && self.is_key(key, b"type") {
                excluded |= self.names_excluded_type();
            }
            let child = node.and_then(|node| self.child(node, key));
            self.value(child, depth + 1)?;
            self.blanks();
            if self.take(b',') {
                continue;
            }
            if self.take(b'}') {
                break;
            }
            return Err(Stop::Malformed);
        }
        if excluded {
            self.visit.restore(mark);
        }
        Ok(())
    }

    fn array(&mut self, node: Option<usize>, depth: usize) -> Result<(), Stop> {
        self.enter(depth)?;
        let items = node.and_then(|node| self.paths.items(node));
        self.blanks();
        if self.take(b']') {
            return Ok(());
        }
        loop {
            self.value(items, depth + 1)?;
            self.blanks();
            if self.take(b',') {
                continue;
            }
            if self.take(b']') {
                return Ok(());
            }
            return Err(Stop::Malformed);
        }
    }

    fn enter(&mut self, depth: usize) -> Result<(), Stop> {
        self.at += 1;
        if depth < MAX_DEPTH {
            Ok(())
        } else {
            Err(Stop::Malformed)
        }
    }

    fn child(&self, node: usize, key: Text) -> Option<usize> {
        let raw = &self.text[key.start..key.end];
        if key.escaped {
            self.paths.member(node, &unescape(raw))
        } else {
            self.paths.member(node, raw)
        }
    }

    fn is_key(&self, key: Text, name: &[u8]) -> bool {
        let raw = &self.text[key.start..key.end];
        raw == name || (key.escaped && unescape(raw) == name)
    }

    /// Whether the value that follows is a string that `unless_type` names; reads nothing off.
    fn names_excluded_type(&mut self) -> bool {
        let before = self.at;
        self.blanks();
        let excluded = self.peek() == Some(b'"')
            && self.string().is_ok_and(|text| {
                let raw = &self.text[text.start..text.end];
                self.paths.excludes(raw) || (text.escaped && self.paths.excludes(&unescape(raw)))
            });
        self.at = before;
        excluded
    }

    /// Crosses a string; `at` stands on its opening quote, and afterwards behind its closing one.
    fn string(&mut self) -> Result<Text, Stop> {
        let start = self.at + 1;
        let mut at = start;
        let mut saved = 0;
        loop {
            let rest = self.text.get(at..).ok_or(Stop::Malformed)?;
            let inside = &rest[..quote(rest).ok_or(Stop::Malformed)?];
            if let Some(line_ends) = only_line_ends(inside) {
                return Ok(self.close(start, at + inside.len(), saved + line_ends));
            }
            let quote = at + inside.len();
            while let Some(before) = self
                .text
                .get(at..quote)
                .and_then(|text| memchr(b'\\', text))
            {
                at += before;
                let (raw, decoded) = escape_lengths(&self.text[at..]).ok_or(Stop::Malformed)?;
                saved += raw - decoded;
                at += raw;
            }
            // An escape that reaches beyond it escapes the quote.
            if at <= quote {
                return Ok(self.close(start, quote, saved));
            }
        }
    }

    fn close(&mut self, start: usize, end: usize, saved: usize) -> Text {
        self.at = end + 1;
        Text {
            start,
            end,
            decoded_len: end - start - saved,
            escaped: saved > 0,
        }
    }

    fn number(&mut self) -> Result<(), Stop> {
        self.take(b'-');
        if !self.take(b'0') && !self.digits() {
            return Err(Stop::Malformed);
        }
        if self.take(b'.') && !self.digits() {
            return Err(Stop::Malformed);
        }
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            if !self.digits() {
                return Err(Stop::Malformed);
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> bool {
        let before = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at > before
    }

    fn literal(&mut self, word: &[u8], kind: Kind) -> Result<Kind, Stop> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(kind)
        } else {
            Err(Stop::Malformed)
        }
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let is = self.peek() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }
}

/// Keys and words end before memchr has begun to pay.
const NEAR: usize = 16;

fn quote(text: &[u8]) -> Option<usize> {
    let near = text.len().min(NEAR);
    let is_quote = |&byte: &u8| byte == b'"';
    text[..near]
        .iter()
        .position(is_quote)
        .or_else(|| memchr(b'"', &text[near..]).map(|at| near + at))
}

/// How many escapes there are, if all of them are the one that prompts are full of.
fn only_line_ends(text: &[u8]) -> Option<usize> {
    // So many bytes at once, each with its own counter, without an exit, as arrays, whose length is known: the
    // compiler keeps it all in wide registers. From slices it makes code that takes twice as long.
    const WIDE: usize = 64;
    const MOST: usize = u8::MAX as usize; // that a counter holds
    let next = text.get(1..).unwrap_or_default();
    let (whole, rest) = text.split_at(next.len() / WIDE * WIDE);
    let mut escapes = 0;
    let mut others = 0;
    for (here, next) in whole.chunks(WIDE * MOST).zip(next.chunks(WIDE * MOST)) {
        let mut counts = [0_u8; WIDE];
        let mut differ = [0_u8; WIDE];
        for (here, next) in here.chunks_exact(WIDE).zip(next.chunks_exact(WIDE)) {
            let here: [u8; WIDE] = here.try_into().unwrap_or([0; WIDE]);
            let next: [u8; WIDE] = next.try_into().unwrap_or([0; WIDE]);
            for at in 0..WIDE {
                let escape = u8::from(here[at] == b'\\').wrapping_neg();
                counts[at] = counts[at].wrapping_sub(escape);
                differ[at] |= escape & (next[at] ^ b'n');
            }
        }
        escapes += counts
            .iter()
            .map(|count| usize::from(*count))
            .sum::<usize>();
        others |= differ.iter().fold(0, |all, one| all | one);
    }
    for (at, _) in rest.iter().enumerate().filter(|(_, here)| **here == b'\\') {
        escapes += 1;
        others |= u8::from(rest.get(at + 1) != Some(&b'n'));
    }
    (others == 0).then_some(escapes)
}

const UNICODE_ESCAPE: usize = 6; // \uXXXX

/// Bytes of the escape that `text` begins with, and of the UTF-8 it stands for.
///
/// A surrogate without its partner counts as U+FFFD, three bytes.
#[inline]
fn escape_lengths(text: &[u8]) -> Option<(usize, usize)> {
    match text.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some((2, 1)),
        b'u' => {
            let unit = code_unit(text)?;
            if is_high_surrogate(unit)
                && text
                    .get(UNICODE_ESCAPE..)
                    .and_then(code_unit)
                    .is_some_and(is_low_surrogate)
            {
                return Some((2 * UNICODE_ESCAPE, 4));
            }
            Some((
                UNICODE_ESCAPE,
                char::from_u32(unit.into()).map_or(3, char::len_utf8),
            ))
        }
        _ => None,
    }
}

/// The value of the \uXXXX that `text` begins with.
fn code_unit(text: &[u8]) -> Option<u16> {
    let digits = text.get(2..UNICODE_ESCAPE)?;
    if !text.starts_with(b"\\u") || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn is_high_surrogate(unit: u16) -> bool {
    (0xd800..0xdc00).contains(&unit)
}

fn is_low_surrogate(unit: u16) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

/// The UTF-8 that a string's inside stands for; its escapes are known to be right.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let rest = &raw[at..];
        if rest[0] != b'\\' {
            out.push(rest[0]);
            at += 1;
            continue;
        }
        let Some((length, decoded)) = escape_lengths(rest) else {
            return out;
        };
        match rest[1] {
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'u' => push_unicode(&mut out, rest, decoded),
            other => out.push(other),
        }
        at += length;
    }
    out
}

fn push_unicode(out: &mut Vec<u8>, escape: &[u8], decoded: usize) {
    let unit = u32::from(code_unit(escape).unwrap_or_default());
    let scalar = if decoded == 4 {
        let low = u32::from(
            escape
                .get(UNICODE_ESCAPE..)
                .and_then(code_unit)
                .unwrap_or_default(),
        );
        0x10000 + ((unit - 0xd800) << 10) + (low.wrapping_sub(0xdc00) & 0x3ff)
    } else {
        unit
    };
    let character = char::from_u32(scalar).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(paths: &[&str], text: &str) -> i64 {
        let owned: Vec<String> = paths.iter().map(ToString::to_string).collect();
        JsonPaths::compile(&owned, &["blob".into()])
            .unwrap()
            .measure(text.as_bytes())
    }

    #[test]
    fn strings_are_counted_as_the_utf8_they_stand_for() {
        assert_eq!(
            measure(&["a"], r#"{"a":"\u00fc\ud83d\ude00\ud83d\n"}"#),
            2 + 4 + 3 + 1
        );
    }

    #[test]
    fn a_blob_is_no_text_wherever_its_type_stands() {
        let text = r#"[{"content":"QUJD","type":"blob"},{"type":"text","content":"ab"}]"#;
        assert_eq!(measure(&["[*].content"], text), 2);
    }

    #[test]
    fn truncated_text_is_malformed() {
        let text = r#"{"a": ["b", {"c": -1.5e3, "\ud83d\ude00": null}, true]}"#;
        assert_eq!(measure(&["a[*]"], text), 1);
        for end in 0..text.len() {
            if text.is_char_boundary(end) {
                assert_eq!(
                    measure(&["a[*]"], &text[..end]),
                    MALFORMED,
                    "{}",
                    &text[..end]
                );
            }
        }
    }

    #[test]
    fn line_ends_are_counted_wherever_they_stand() {
        // Around what is looked at as one, and what a counter holds.
        for len in (0..200).chain(16_300..16_330).chain([40_000]) {
            let all: Vec<u8> = b"\\n".iter().copied().cycle().take(2 * (len / 2)).collect();
            assert_eq!(only_line_ends(&all), Some(len / 2), "{len}");
            for at in [
                0,
                1,
                62,
                63,
                64,
                65,
                127,
                128,
                len / 2,
                len.saturating_sub(2),
            ] {
                if at + 2 > len {
                    continue;
                }
                let mut text = vec![b'n'; len];
                text[at] = b'\\';
                assert_eq!(only_line_ends(&text), Some(1), "{at} of {len}");
                text[at + 1] = b't';
                assert_eq!(only_line_ends(&text), None, "{at} of {len}");
            }
            let mut cut = vec![b'n'; len];
            cut.push(b'\\');
            assert_eq!(only_line_ends(&cut), None, "{len}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = "[".repeat(100_000);
        assert_eq!(measure(&["a"], &deep), MALFORMED);
    }
}
