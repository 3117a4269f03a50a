//! Changes one document of a file and leaves the others as they are written.

/// Replaces the YAML document that begins at `line` (from 1), or takes it away.
/// `lines` are where all documents of the text begin. `None` where the document does
/// not stand between separators of its own.
pub(super) fn replace(text: &str, lines: &[u32], line: u32, new: Option<&str>) -> Option<String> {
    let at = usize::try_from(line).ok()?.checked_sub(1)?;
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    let separator = |line: &str| {
        line.strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
    };
    // The separator before the document, and the one after it.
    let start = all.iter().take(at + 1).rposition(|l| separator(l));
    let end = all.iter().skip(at + 1).position(|l| separator(l)).map_or(all.len(), |n| at + 1 + n);
    let from = start.unwrap_or(0);
    let inside = |l: &&u32| (from..end).contains(&(**l as usize).saturating_sub(1));
    if at >= all.len() || lines.iter().filter(inside).count() != 1 {
        return None;
    }
    let mut text: String = all.get(..from)?.concat();
    if let Some(new) = new {
        if start.is_some() {
            text.push_str("---\n");
        }
        text.push_str(new);
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    text.push_str(&all.get(end..)?.concat());
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_document_among_others() {
        let text = "# top\na: 1\n---\n# mine\nb: 2\n--- # last\nc: 3\n";
        let lines = [2, 5, 7];
        assert_eq!(
            replace(text, &lines, 5, Some("x: 1\n")).as_deref(),
            Some("# top\na: 1\n---\nx: 1\n--- # last\nc: 3\n")
        );
        assert_eq!(
            replace(text, &lines, 5, None).as_deref(),
            Some("# top\na: 1\n--- # last\nc: 3\n")
        );
        assert_eq!(
            replace(text, &lines, 2, None).as_deref(),
            Some("---\n# mine\nb: 2\n--- # last\nc: 3\n")
        );
        assert_eq!(
            replace(text, &lines, 7, Some("y: 1")).as_deref(),
            Some("# top\na: 1\n---\n# mine\nb: 2\n---\ny: 1\n")
        );
        // Two in one list.
        assert_eq!(replace(text, &[2, 4, 5, 7], 5, None), None);
        assert_eq!(replace("", &[], 1, None), None);
    }
}
