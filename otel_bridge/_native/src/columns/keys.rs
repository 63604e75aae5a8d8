//! Texts looked up in fixed lists: words, path ends, keys with numbers in them.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::Slices;

const NONE: i16 = -1;

#[derive(Clone, Copy)]
enum Mode {
    Verbatim,
    Exact,
    Prefix,
    PathEnd,
}

/// A list of words, compared without regard to ASCII case unless verbatim.
#[pyclass(frozen, module = "otel_bridge._native.wire")]
pub struct Words {
    words: Vec<Vec<u8>>,
    index: HashMap<Vec<u8>, i16>,
    mode: Mode,
}

impl Words {
    fn find(&self, text: &[u8]) -> i16 {
        let candidates = || self.words.iter();
        let found = match self.mode {
            Mode::Verbatim => return self.index.get(text).copied().unwrap_or(NONE),
            Mode::Exact => {
                return self
                    .index
                    .get(&text.to_ascii_lowercase())
                    .copied()
                    .unwrap_or(NONE)
            }
            Mode::Prefix => candidates().position(|word| {
                text.get(..word.len())
                    .is_some_and(|head| head.eq_ignore_ascii_case(word))
            }),
            Mode::PathEnd => {
                let path = path_of(text);
                candidates().position(|word| {
                    path.len()
                        .checked_sub(word.len())
                        .is_some_and(|at| path[at..].eq_ignore_ascii_case(word))
                })
            }
        };
        found.map_or(NONE, |at| at as i16)
    }
}

#[pymethods]
impl Words {
    #[new]
    fn new(words: Vec<Vec<u8>>, mode: &str) -> PyResult<Self> {
        let mode = match mode {
            "verbatim" => Mode::Verbatim,
            "exact" => Mode::Exact,
            "prefix" => Mode::Prefix,
            "path_end" => Mode::PathEnd,
            other => {
                return Err(PyValueError::new_err(format!(
                    "{other:?} is not verbatim, exact, prefix or path_end"
                )))
            }
        };
        let folded = |word: &Vec<u8>| match mode {
            Mode::Verbatim => word.clone(),
            _ => word.to_ascii_lowercase(),
        };
        let words: Vec<Vec<u8>> = words.iter().map(folded).collect();
        let mut index = HashMap::new();
        for (at, word) in words.iter().enumerate() {
            index.entry(word.clone()).or_insert(at as i16);
        }
        Ok(Self { words, index, mode })
    }

    /// For each text the place of the first word that fits, or -1; i16.
    fn lookup<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        offs: &[u8],
        lens: &[u8],
    ) -> Bound<'py, PyBytes> {
        indices(py, Slices { data, offs, lens }, |text| self.find(text))
    }
}

/// A path, or a URL's path, without query, fragment and closing slashes.
fn path_of(text: &[u8]) -> &[u8] {
    let end = text
        .iter()
        .position(|byte| matches!(byte, b'?' | b'#'))
        .unwrap_or(text.len());
    let mut path = &text[..end];
    while let Some(shorter) = path.strip_suffix(b"/") {
        path = shorter;
    }
    path
}

/// Keys with numbers in them, written with `#` for each number: `llm.prompts.#.prompt.text`.
#[pyclass(frozen, module = "otel_bridge._native.wire")]
pub struct KeyPatterns {
    patterns: Vec<Vec<Vec<u8>>>,
}

impl KeyPatterns {
    fn find(&self, key: &[u8]) -> i16 {
        self.patterns
            .iter()
            .position(|pattern| fits(pattern, key))
            .map_or(NONE, |at| at as i16)
    }
}

#[pymethods]
impl KeyPatterns {
    #[new]
    fn new(patterns: Vec<Vec<u8>>) -> Self {
        let split = |pattern: &Vec<u8>| {
            pattern
                .split(|&byte| byte == b'#')
                .map(<[u8]>::to_vec)
                .collect()
        };
        Self {
            patterns: patterns.iter().map(split).collect(),
        }
    }

    /// For each key the place of the first pattern that fits, or -1; i16.
    fn lookup<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        offs: &[u8],
        lens: &[u8],
    ) -> Bound<'py, PyBytes> {
        indices(py, Slices { data, offs, lens }, |key| self.find(key))
    }
}

/// Whether a key is the literals of a pattern with decimal numbers between them.
fn fits(literals: &[Vec<u8>], key: &[u8]) -> bool {
    let mut rest = key;
    for (number, literal) in literals.iter().enumerate() {
        if number > 0 {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return false;
            }
            rest = &rest[digits..];
        }
        match rest.strip_prefix(literal.as_slice()) {
            Some(tail) => rest = tail,
            None => return false,
        }
    }
    rest.is_empty()
}

fn indices<'py>(
    py: Python<'py>,
    slices: Slices<'_>,
    find: impl Fn(&[u8]) -> i16,
) -> Bound<'py, PyBytes> {
    let mut out = Vec::with_capacity(slices.len() * 2);
    for (_, text) in slices.iter() {
        out.extend_from_slice(&find(text).to_le_bytes());
    }
    PyBytes::new(py, &out)
}
