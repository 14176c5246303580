//! Rows as JSON with the version of their last change, so that each client gets only what changed since it asked last.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Rows by number.
#[derive(Debug, Default)]
pub struct Table {
    rows: BTreeMap<u64, Row>,
    /// Version in which rows were added or removed last.
    members_changed: u64,
}

#[derive(Debug)]
struct Row {
    json: String,
    changed: u64,
}

impl Table {
    /// Replaces all rows by those of another version.
    pub fn replace(&mut self, version: u64, rows: impl IntoIterator<Item = (u64, String)>) {
        let mut before = std::mem::take(&mut self.rows);
        for (number, json) in rows {
            let known = before.remove(&number);
            if known.is_none() {
                self.members_changed = version;
            }
            let changed = known.filter(|row| row.json == json).map_or(version, |row| row.changed);
            self.rows.insert(number, Row { json, changed });
        }
        if !before.is_empty() {
            self.members_changed = version;
        }
    }

    /// Appends what changed after a version as a JSON object: `rows`, and, if rows were added or removed, `ids` with the numbers of all.
    pub fn write(&self, since: u64, text: &mut String) {
        text.push_str("{\"rows\":[");
        let changed = self.rows.values().filter(|row| row.changed > since);
        push_list(text, changed.map(|row| row.json.as_str()));
        text.push(']');
        if self.members_changed > since {
            text.push_str(",\"ids\":[");
            for (at, number) in self.rows.keys().enumerate() {
                // Writing into a string does not fail.
                let _ = write!(text, "{}{number}", if at == 0 { "" } else { "," });
            }
            text.push(']');
        }
        text.push('}');
    }
}

/// Appends items, separated by commas.
pub fn push_list<'a>(text: &mut String, items: impl Iterator<Item = &'a str>) {
    for (at, item) in items.enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(item);
    }
}
