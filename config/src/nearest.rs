//! The word that someone meant.

/// The nearest of `words`, if it is near enough to be what was meant. Costs `word.len()` times the length of each word.
pub(crate) fn nearest<'a>(word: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer than any key and its typing errors: no use comparing.
    if word.len() > 64 {
        return None;
    }
    let (distance, best) = words.map(|known| (distance(word, known), known)).min()?;
    let allowed = (best.len() / 3).max(1);
    (distance <= allowed).then_some(best)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1; b.len() + 1];
        for j in 0..b.len() {
            let replaced = above[j] + usize::from(a[i] != b[j]);
            row[j + 1] = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["capacity", "blocks", "policy", "huge_pages"];
        for (word, want) in [
            ("capacty", Some("capacity")),
            ("Policy", Some("policy")),
            ("plociy", Some("policy")),
            ("hugepages", Some("huge_pages")),
            ("block", Some("blocks")),
            ("socket", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known.into_iter()), want, "{word}");
        }
        assert_eq!(nearest(&"capacity".repeat(1000), known.into_iter()), None);
    }
}
