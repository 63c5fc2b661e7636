//! Aligned columns, in which words of others are shown and not obeyed.

use vram_control_api::Printable;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Lines of cells, two spaces between columns and none at the end of a line. A row shorter than the header leaves its
/// last columns empty; cells beyond the header are not shown.
pub(crate) fn table(header: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = header.iter().map(|(title, _)| (*title).to_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(printable).collect()).collect();
    let lines = || std::iter::once(&titles).chain(&rows);
    let width = |column: usize| {
        lines().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let columns: Vec<(Align, usize)> =
        header.iter().enumerate().map(|(column, (_, align))| (*align, width(column))).collect();
    let mut text = String::new();
    for line in lines() {
        let cells: Vec<String> = columns
            .iter()
            .zip(line)
            .map(|((align, width), cell)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Lines of a name and a value, the values below each other.
pub(crate) fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 1;
    fields
        .iter()
        .map(|(name, value)| format!("{:<width$} {}\n", format!("{name}:"), Printable(value)))
        .collect()
}

fn printable(cell: impl AsRef<str>) -> String {
    Printable(cell.as_ref()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_words_left_and_numbers_right() {
        let rows =
            [vec!["é".into(), "1".into(), "x".into()], vec!["long".into(), "10000".into(), String::new()]];

        let text = table(&[("NAME", Align::Left), ("SIZE", Align::Right), ("", Align::Left)], &rows);

        assert_eq!(text, "NAME   SIZE\né         1  x\nlong  10000\n");
    }

    #[test]
    fn table_without_rows_is_its_header() {
        assert_eq!(table(&[("A", Align::Left), ("B", Align::Right)], &[]), "A  B\n");
    }

    #[test]
    fn table_cells_stay_in_their_line_and_are_as_wide_as_shown() {
        let rows = [vec!["a\n\u{1b}[A".into(), "1".into()], vec!["b".into(), "2".into()]];

        let text = table(&[("NAME", Align::Left), ("N", Align::Right)], &rows);

        assert_eq!(text, "NAME         N\na\\n\\u{1b}[A  1\nb            2\n");
        assert_eq!(fields(&[("a", "\u{202e}\n".into())]), "a: \\u{202e}\\n\n");
    }

    #[test]
    fn fields_put_values_below_each_other() {
        assert_eq!(fields(&[("a", "1".into()), ("long", "2".into())]), "a:    1\nlong: 2\n");
    }
}
