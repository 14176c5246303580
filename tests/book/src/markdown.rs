//! Markdown of the generated pages.

/// Returns a text as a cell of a Markdown table.
pub fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let prose_and_code = line.split('`').enumerate();
    prose_and_code
        .map(|(index, part)| if index % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}

/// Returns the rows of a table under its heading.
pub fn table(heading: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heading: Vec<String> = heading.iter().map(|&cell| cell.to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(heading.len()));
    line(&heading) + &rule + &rows.into_iter().map(|row| line(&row)).collect::<String>()
}
