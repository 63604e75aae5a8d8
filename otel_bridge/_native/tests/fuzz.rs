//! Bounded fuzzing on a stable compiler: requests of random structure, then bits flipped and bytes cut.
//!
//! `FUZZ_SECONDS` bounds each property (default 3). A failure prints the seed that `arbtest` takes to repeat it.

use std::time::Duration;

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;
use otel_bridge_native::mend::Rewrite;
use otel_bridge_native::plan::{Place, Plan, Want};
use otel_bridge_native::reader::put_varint;
use otel_bridge_native::records::{Slice, SPAN_SIZE};
use otel_bridge_native::scan::{scan, Scanned};
use otel_bridge_native::splice::{splice, Edits, Insert, Rope, Swap, Values};

fn budget() -> Duration {
    let seconds = std::env::var("FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(3.0))
}

const KEYS: [&str; 4] = ["k", "http.request.method", "gen_ai.prompt.0", "ключ"];

fn plan() -> Plan {
    let exact = Place::ALL
        .into_iter()
        .flat_map(|place| KEYS.map(|key| (place, key, false)));
    let prefixes = Place::ALL
        .into_iter()
        .flat_map(|place| ["", "gen_ai."].map(|key| (place, key, true)));
    let wants: Vec<Want> = exact
        .chain(prefixes)
        .map(|(place, key, prefix)| Want {
            place,
            key: key.into(),
            prefix,
        })
        .collect();
    Plan::new(&wants, Some(20))
}

#[test]
fn any_bytes_are_read_or_refused() {
    let plan = plan();
    arbtest(|bytes| {
        let data = bytes.arbitrary::<Vec<u8>>()?;
        if let Ok(scanned) = scan(&data, &plan, Scanned::default()) {
            check_records(&data, &scanned);
        }
        Ok(())
    })
    .budget(budget());
}

#[test]
fn broken_requests_are_read_or_refused() {
    let plan = plan();
    arbtest(|bytes| {
        let mut data = message(bytes, Kind::Request, 0)?;
        for _ in 0..bytes.int_in_range(1..=3)? {
            mutate(bytes, &mut data)?;
        }
        let Ok(scanned) = scan(&data, &plan, Scanned::default()) else {
            return Ok(());
        };
        check_records(&data, &scanned);
        let (data, scanned) = rewritten(data, scanned, &plan);
        check_edits(bytes, &data, &scanned, &plan)
    })
    .budget(budget());
}

#[test]
fn edits_leave_a_request() {
    let plan = plan();
    arbtest(|bytes| {
        let data = message(bytes, Kind::Request, 0)?;
        let scanned = scan(&data, &plan, Scanned::default()).expect("a request of right structure");
        check_records(&data, &scanned);
        let (data, scanned) = rewritten(data, scanned, &plan);
        check_edits(bytes, &data, &scanned, &plan)
    })
    .budget(budget());
}

/// Everything a record points at lies in the request, and texts are what they claim to be.
fn check_records(data: &[u8], scanned: &Scanned) {
    for attribute in &scanned.attributes {
        let field = attribute.field.of(data);
        assert!(field.len() >= 2);
        for inner in [attribute.key, attribute.content] {
            let bytes = inner.of(data);
            assert!(inner.len == 0 || field.as_ptr_range().contains(&bytes.as_ptr()));
        }
    }
    for broken in &scanned.broken {
        assert!(std::str::from_utf8(broken.content.of(data)).is_err());
    }
    assert_eq!(scanned.spans.len() % SPAN_SIZE, 0);
}

/// The request as the codec hands it on: nothing broken is left, and no span is lost.
fn rewritten(mut data: Vec<u8>, mut scanned: Scanned, plan: &Plan) -> (Vec<u8>, Scanned) {
    let rows = scanned.spans.len() / SPAN_SIZE;
    if !scanned.broken.is_empty() {
        data = written(
            &Rewrite::mending(&data, &scanned.broken)
                .splice(&data, rows)
                .unwrap(),
        );
        scanned = scan(&data, plan, scanned).unwrap();
    }
    if !scanned.parted.is_empty() {
        let joining = Rewrite::joining(&data, &scanned.parted).unwrap();
        data = written(&joining.splice(&data, rows).unwrap());
        scanned = scan(&data, plan, scanned).unwrap();
    }
    assert!(scanned.broken.is_empty());
    assert!(scanned.parted.is_empty());
    assert_eq!(scanned.spans.len() / SPAN_SIZE, rows);
    (data, scanned)
}

fn check_edits(
    bytes: &mut Unstructured,
    data: &[u8],
    scanned: &Scanned,
    plan: &Plan,
) -> Result<()> {
    let rows = scanned.spans.len() / SPAN_SIZE;
    let unedited = splice(
        data,
        Edits {
            rows,
            ..Edits::default()
        },
    )
    .unwrap();
    assert_eq!(written(&unedited), data);

    let mut gone = vec![0; rows];
    for flag in &mut gone {
        *flag = u8::from(bytes.ratio(1, 4)?);
    }
    let (mut cuts, mut fields) = (Vec::new(), Vec::<Slice>::new());
    for attribute in &scanned.attributes {
        match bytes.int_in_range(0..=3)? {
            0 => cuts.push(attribute.field),
            1 => fields.push(attribute.field),
            _ => {}
        }
    }
    let mut inserted = Vec::new();
    if rows > 0 {
        for _ in 0..bytes.int_in_range(0..=2 * rows)? {
            inserted.extend_from_slice(&bytes.int_in_range(0..=rows as u32 - 1)?.to_le_bytes());
        }
    }
    let tags: Vec<[u8; 6]> = fields
        .iter()
        .map(|field| [data[field.off as usize] & 0x7f, 4, 0x0a, 2, b'n', b'w'])
        .collect();
    let replacements = fields
        .iter()
        .zip(&tags)
        .map(|(&field, with)| Swap { field, with })
        .collect();
    let insert = Insert {
        key: b"inserted",
        rows: &inserted,
        values: Values::Const(b"text"),
    };
    let edits = Edits {
        rows,
        gone: &gone,
        inserts: vec![insert],
        cuts,
        replacements,
    };
    let spliced = written(&splice(data, edits).unwrap());

    let again = scan(&spliced, plan, Scanned::default()).unwrap();
    let left = gone.iter().filter(|&&flag| flag == 0).count();
    assert_eq!(again.spans.len() / SPAN_SIZE, left);
    assert!(again.broken.is_empty());
    Ok(())
}

fn written(rope: &Rope) -> Vec<u8> {
    let mut out = vec![0; rope.size()];
    rope.write(&mut out);
    out
}

/// The messages of a request.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Request,
    ResourceSpans,
    Resource,
    ScopeSpans,
    Scope,
    Span,
    Event,
    Link,
    Status,
    KeyValue,
    AnyValue,
    Array,
    Kvlist,
}

enum Content {
    Message(Kind),
    Text,
    Bytes(usize),
    Varint,
    Fixed(usize),
}

fn fields(kind: Kind) -> &'static [(u32, Content)] {
    use Content::{Bytes, Fixed, Message, Text, Varint};
    match kind {
        Kind::Request => &[(1, Message(Kind::ResourceSpans))],
        Kind::ResourceSpans => &[
            (1, Message(Kind::Resource)),
            (2, Message(Kind::ScopeSpans)),
            (3, Text),
        ],
        Kind::Resource => &[(1, Message(Kind::KeyValue)), (2, Varint)],
        Kind::ScopeSpans => &[
            (1, Message(Kind::Scope)),
            (2, Message(Kind::Span)),
            (3, Text),
        ],
        Kind::Scope => &[
            (1, Text),
            (2, Text),
            (3, Message(Kind::KeyValue)),
            (4, Varint),
        ],
        Kind::Span => &[
            (1, Bytes(16)),
            (2, Bytes(8)),
            (3, Text),
            (4, Bytes(8)),
            (5, Text),
            (6, Varint),
            (7, Fixed(8)),
            (9, Message(Kind::KeyValue)),
            (9, Message(Kind::KeyValue)),
            (11, Message(Kind::Event)),
            (13, Message(Kind::Link)),
            (15, Message(Kind::Status)),
            (16, Fixed(4)),
        ],
        Kind::Event => &[(1, Fixed(8)), (2, Text), (3, Message(Kind::KeyValue))],
        Kind::Link => &[
            (1, Bytes(16)),
            (2, Bytes(8)),
            (3, Text),
            (4, Message(Kind::KeyValue)),
        ],
        Kind::Status => &[(2, Text), (3, Varint)],
        Kind::KeyValue => &[(1, Text), (2, Message(Kind::AnyValue))],
        Kind::AnyValue => &[
            (1, Text),
            (2, Varint),
            (3, Varint),
            (4, Fixed(8)),
            (5, Message(Kind::Array)),
            (6, Message(Kind::Kvlist)),
            (7, Bytes(30)),
        ],
        Kind::Array => &[(1, Message(Kind::AnyValue))],
        Kind::Kvlist => &[(1, Message(Kind::KeyValue))],
    }
}

/// A message of known fields in any order and number, and of unknown ones.
fn message(bytes: &mut Unstructured, kind: Kind, depth: u32) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if depth > 30 {
        return Ok(out);
    }
    let most = if kind == Kind::Span { 12 } else { 4 };
    for _ in 0..bytes.int_in_range(u32::from(depth < 3)..=most)? {
        let (number, content) = bytes.choose(fields(kind))?;
        if bytes.ratio(1, 20)? {
            unknown(bytes, &mut out)?;
        }
        match content {
            Content::Message(inner) => put(&mut out, *number, &message(bytes, *inner, depth + 1)?),
            Content::Text if bytes.ratio(1, 20)? => put(&mut out, *number, b"\xe4\xbd"),
            Content::Text => put(&mut out, *number, bytes.choose(&KEYS)?.as_bytes()),
            Content::Bytes(len) => put(&mut out, *number, bytes.bytes((*len).min(bytes.len()))?),
            Content::Varint => {
                put_varint(&mut out, u64::from(*number << 3));
                put_varint(&mut out, bytes.arbitrary()?);
            }
            Content::Fixed(len) => {
                put_varint(
                    &mut out,
                    u64::from(*number << 3 | if *len == 8 { 1 } else { 5 }),
                );
                out.extend_from_slice(&bytes.arbitrary::<[u8; 8]>()?[..*len]);
            }
        }
    }
    Ok(out)
}

fn unknown(bytes: &mut Unstructured, out: &mut Vec<u8>) -> Result<()> {
    let number = bytes.int_in_range(17u32..=(1 << 29) - 1)?;
    match bytes.int_in_range(0..=1)? {
        0 => put(out, number, bytes.arbitrary::<[u8; 5]>()?.as_slice()),
        _ => {
            put_varint(out, u64::from(number << 3 | 3));
            put(out, number, b"in a group");
            put_varint(out, u64::from(number << 3 | 4));
        }
    }
    Ok(())
}

fn put(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    put_varint(out, u64::from(number << 3 | 2));
    put_varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn mutate(bytes: &mut Unstructured, data: &mut Vec<u8>) -> Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    let place = bytes.choose_index(data.len())?;
    match bytes.int_in_range(0..=3)? {
        0 => data[place] ^= 1 << bytes.int_in_range(0..=7)?,
        1 => data.truncate(place),
        2 => drop(data.remove(place)),
        _ => data.insert(place, bytes.arbitrary()?),
    }
    Ok(())
}
