//! Which attributes are wanted: a key's slots, found in a few nanoseconds.

/// A want's `scope` in `model.Scope`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Span,
    Resource,
    Instrumentation,
    Event,
    Link,
}

impl Place {
    pub const ALL: [Place; 5] = [
        Place::Span,
        Place::Resource,
        Place::Instrumentation,
        Place::Event,
        Place::Link,
    ];
}

pub struct Want {
    pub place: Place,
    pub key: Vec<u8>,
    pub prefix: bool,
}

/// The slot number of attributes that are wanted for their size alone.
pub const OVERSIZED: u16 = u16::MAX;

/// `batch.STATUS_MESSAGE`: the key whose column holds the status's message too.
const STATUS_MESSAGE: &[u8] = b"otel.status_description";

/// All wanted columns; a want's place in the list is its slot.
pub struct Plan {
    matchers: [Matcher; Place::ALL.len()],
    pub slots: usize,
    /// The slot that wants the status's message.
    pub status_message: Option<u16>,
    /// Content longer than this is wanted whatever its key.
    pub longer_than: usize,
}

impl Plan {
    /// `wants` number fewer than `OVERSIZED`.
    pub fn new(wants: &[Want], longer_than: Option<usize>) -> Self {
        let matchers = Place::ALL.map(|place| Matcher::new(wants, place));
        Self {
            status_message: matchers[Place::Span as usize].exact(STATUS_MESSAGE),
            matchers,
            slots: wants.len(),
            longer_than: longer_than.unwrap_or(usize::MAX),
        }
    }

    #[inline]
    pub fn matcher(&self, place: Place) -> &Matcher {
        &self.matchers[place as usize]
    }
}

/// What a key answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The slot of exactly this key.
    pub exact: Option<u16>,
    /// Whether it begins with a wanted prefix.
    pub prefixed: bool,
}

/// The wants of one place.
pub struct Matcher {
    /// Open addressing, a power of two in size and at most an eighth full: a miss ends at once.
    table: Vec<Option<Exact>>,
    shift: u32,
    /// Sorted, so that those with one first byte stand together.
    prefixes: Vec<(Vec<u8>, u16)>,
    /// For each first byte the stretch of `prefixes` that begins so.
    by_first: Vec<(u16, u16)>,
}

struct Exact {
    key: Box<[u8]>,
    slot: u16,
}

impl Matcher {
    fn new(wants: &[Want], place: Place) -> Self {
        let here = || {
            wants
                .iter()
                .zip(0u16..)
                .filter(move |(want, _)| want.place == place)
        };
        let exact = here().filter(|(want, _)| !want.prefix).count();
        let size = (exact * 8).next_power_of_two().max(2);
        let mut table: Vec<Option<Exact>> = (0..size).map(|_| None).collect();
        let shift = u64::BITS - size.trailing_zeros();
        for (want, slot) in here().filter(|(want, _)| !want.prefix) {
            let mut index = (hash(&want.key) >> shift) as usize;
            while table[index].is_some() {
                index = (index + 1) & (size - 1);
            }
            table[index] = Some(Exact {
                key: want.key.clone().into(),
                slot,
            });
        }
        let mut prefixes: Vec<_> = here()
            .filter(|(want, _)| want.prefix)
            .map(|(want, slot)| (want.key.clone(), slot))
            .collect();
        prefixes.sort();
        let mut by_first = vec![(0, 0); 256];
        for first in 0..=u8::MAX {
            // An empty prefix begins every key.
            let begins =
                |(prefix, _): &&(Vec<u8>, u16)| prefix.first().is_none_or(|&byte| byte == first);
            let start = prefixes
                .iter()
                .position(|prefix| begins(&prefix))
                .unwrap_or(0);
            let end = prefixes
                .iter()
                .rposition(|prefix| begins(&prefix))
                .map_or(0, |last| last + 1);
            by_first[usize::from(first)] = (start as u16, end as u16);
        }
        Self {
            table,
            shift,
            prefixes,
            by_first,
        }
    }

    /// The slot of exactly this key.
    #[inline]
    pub fn exact(&self, key: &[u8]) -> Option<u16> {
        let mut index = (hash(key) >> self.shift) as usize;
        while let Some(Some(entry)) = self.table.get(index) {
            if *entry.key == *key {
                return Some(entry.slot);
            }
            index = (index + 1) & (self.table.len() - 1);
        }
        None
    }

    #[inline]
    pub fn answer(&self, key: &[u8]) -> Answer {
        Answer {
            exact: self.exact(key),
            prefixed: self.prefixes(key).next().is_some(),
        }
    }

    /// The slots of all prefixes of this key.
    #[inline]
    pub fn prefixes<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = u16> + 'a {
        let (start, end) = match key.first() {
            Some(&first) => self.by_first[usize::from(first)],
            None => (0, self.prefixes.len() as u16),
        };
        self.prefixes[usize::from(start)..usize::from(end)]
            .iter()
            .filter(move |(prefix, _)| key.starts_with(prefix))
            .map(|(_, slot)| *slot)
    }
}

/// Length, first and last eight bytes: the keys of semantic conventions differ there.
#[inline]
fn hash(key: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (head, tail) = match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
        (Some(head), Some(tail)) => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
        _ => (
            key.iter()
                .fold(0, |word, &byte| word << 8 | u64::from(byte)),
            0,
        ),
    };
    (head.wrapping_mul(ODD) ^ tail.rotate_left(29) ^ key.len() as u64).wrapping_mul(ODD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(place: Place, key: &str, prefix: bool) -> Want {
        Want {
            place,
            key: key.into(),
            prefix,
        }
    }

    #[test]
    fn each_key_finds_its_slot_in_its_place_alone() {
        let keys: Vec<String> = (0..500)
            .map(|number| format!("gen_ai.{number}.content"))
            .collect();
        let wants: Vec<Want> = keys
            .iter()
            .map(|key| want(Place::Event, key, false))
            .collect();
        let plan = Plan::new(&wants, None);
        for (slot, key) in (0..).zip(&keys) {
            assert_eq!(plan.matcher(Place::Event).exact(key.as_bytes()), Some(slot));
            assert_eq!(plan.matcher(Place::Span).exact(key.as_bytes()), None);
        }
        for missing in ["", "gen_ai.500.content", "gen_ai.1.contenu", "gen_ai."] {
            assert_eq!(plan.matcher(Place::Event).exact(missing.as_bytes()), None);
        }
    }

    #[test]
    fn all_prefixes_of_a_key_are_found() {
        let wants = ["gen_ai.", "", "gen_ai.prompt.", "llm.", "g"];
        let wants = wants.map(|key| want(Place::Span, key, true));
        let plan = Plan::new(&wants, None);
        let found = |key: &str| {
            let mut slots: Vec<u16> = plan.matcher(Place::Span).prefixes(key.as_bytes()).collect();
            slots.sort();
            slots
        };
        assert_eq!(found("gen_ai.prompt.0"), [0, 1, 2, 4]);
        assert_eq!(found("llm.x"), [1, 3]);
        assert_eq!(found("zzz"), [1]);
        assert_eq!(found(""), [1]);
        assert!(!plan.matcher(Place::Link).answer(b"gen_ai.x").prefixed);
    }

    #[test]
    fn a_plan_of_nothing_answers_nothing() {
        let plan = Plan::new(&[], None);
        assert_eq!(plan.matcher(Place::Span).answer(b"k"), Answer::default());
        assert_eq!(plan.matcher(Place::Span).answer(b""), Answer::default());
    }
}
