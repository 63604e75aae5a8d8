//! How many records a request has that is passed on unread.

use crate::reader::{tag, Read, Reader, DEPTH, SIZED};

/// Counts the messages at the end of `path`: the field numbers that lead there, level by level.
///
/// A message that cannot be read counts nothing, as if it were not there.
pub fn count(data: &[u8], path: &[Vec<u32>]) -> usize {
    match path.split_first() {
        Some((fields, below)) => level(data, fields, below).unwrap_or(0),
        None => 1,
    }
}

fn level(data: &[u8], fields: &[u32], below: &[Vec<u32>]) -> Read<usize> {
    let mut reader = Reader::new(data, 0, data.len());
    let mut found = 0;
    while !reader.done() {
        let next = reader.tag()?;
        if fields.iter().any(|&number| next == tag(number, SIZED)) {
            let (start, end) = reader.sized()?;
            found += count(&data[start..end], below);
        } else {
            reader.skip(next, DEPTH)?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_at_the_end_of_the_path_are_counted() {
        let path = [vec![1], vec![2, 3]];
        let inner = [0x12, 0x01, 0xff, 0x1a, 0x00, 0x08, 0x01, 0x22, 0x00];
        let one = [&[0x0a, inner.len() as u8][..], &inner].concat();
        assert_eq!(count(&one, &path), 2);
        assert_eq!(count(&[&one[..], &one].concat(), &path), 4);
        assert_eq!(count(&[], &path), 0);
    }

    #[test]
    fn what_cannot_be_read_counts_nothing() {
        let path = [vec![1], vec![2]];
        let good = [0x0a, 0x02, 0x12, 0x00];
        let broken = [0x0a, 0x02, 0x12, 0x01];
        assert_eq!(count(&[good, broken].concat(), &path), 1);
        assert_eq!(count(&[&good[..], &[0x0a]].concat(), &path), 0);
    }
}
