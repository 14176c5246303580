//! Every message that vgpu prints stands in the chapter "troubleshoot", or if it is no error, in "reference/output.md".

use std::collections::BTreeSet;

use vgpu_architecture::workspace;
use vgpu_book::messages::{Message, has_words, of_scripts, of_shipped};
use vgpu_book::pages::{chapter, code, root};

fn messages() -> BTreeSet<Message> {
    let packages = workspace::read(&root()).unwrap_or_else(|error| panic!("{error}"));
    let (messages, scripts) = (of_shipped(&packages), of_scripts());
    assert!(messages.len() > 300 && scripts.len() > 30, "only {} and {} messages were found", messages.len(), scripts.len());
    messages.into_iter().chain(scripts).collect()
}

/// Returns the texts in which messages may stand: pieces of code in "troubleshoot" and in the page of other output, and the meanings of metrics.
fn texts() -> Vec<String> {
    let troubleshoot = chapter("troubleshoot").into_iter().flat_map(|page| page.pieces());
    let reference = chapter("reference").into_iter().flat_map(|page| match page.name.as_str() {
        "reference/output.md" => page.pieces(),
        "reference/metrics.md" => page.rows().into_iter().filter_map(|mut row| row.pop()).collect(),
        _ => vec![],
    });
    troubleshoot.chain(reference).collect()
}

#[test]
fn every_message_stands_in_the_book() {
    let texts = texts();
    let missing = messages().into_iter().filter(|message| !texts.iter().any(|text| message.stands_in(text)));
    let missing: Vec<String> = missing.map(|message| format!("{}: {}", message.file, message.text)).collect();
    let expected = "errors and warnings in a table of docs/troubleshoot with cause and remedy, other output in docs/reference/output.md";
    assert!(missing.is_empty(), "{} messages are not in the book; expected {expected}:\n{}", missing.len(), missing.join("\n"));
}

#[test]
fn every_entry_is_a_message_and_has_a_cause_and_a_remedy() {
    let messages = messages();
    let mut wrong = vec![];
    for page in chapter("troubleshoot").iter().filter(|page| page.name != "troubleshoot/README.md") {
        for row in page.rows() {
            if row.len() != 3 || row.iter().any(String::is_empty) {
                wrong.push(format!("{}: expected message, cause and remedy: {}", page.name, row.join(" | ")));
            }
            // A text of placeholders alone stands for errors of other programs.
            let known = |text: &String| !has_words(text) || messages.iter().any(|message| message.stands_in(text));
            wrong.extend(code(&row[0]).iter().filter(|text| !known(text)).map(|text| format!("{}: no such message: {text}", page.name)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
