//! The questions that people ask first are answered in one click from the README and from the book's first page.

use std::fs;

use vgpu_book::pages::root;

/// What people ask first: words of the question, and where it is answered, below `docs/`.
const QUESTIONS: [(&str, &str); 10] = [
    ("one GPU among three containers", "ask/examples.md#three-containers-on-one-gpu"),
    ("What happens at the limit", "ask/README.md#at-the-limit"),
    ("vLLM", "ask/examples.md#frameworks"),
    ("who uses what", "operate/running.md#who-uses-what"),
    ("Is it secure", "understand/README.md#is-it-secure"),
    ("upgrade", "operate/upgrade.md"),
    ("Why was my container refused", "troubleshoot/README.md#why-was-my-container-refused"),
    ("differ from HAMi, MPS, MIG", "understand/sharing-modes.md"),
    ("What does it cost", "measure/README.md#what-it-costs"),
    ("remove it", "operate/uninstall.md"),
];

#[test]
fn each_question_is_answered_in_one_click() {
    for (page, prefix) in [("README.md", "docs/"), ("docs/README.md", "")] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        for (words, answer) in QUESTIONS {
            let link = format!("]({prefix}{answer})");
            let is_answered = text.lines().any(|line| line.starts_with("| ") && line.contains(words) && line.contains(&link));
            assert!(is_answered, "{page}: expected a row with \"{words}\" and {link}");
        }
    }
}

#[test]
fn answers_are_where_the_links_lead() {
    for (_, answer) in QUESTIONS {
        let (page, anchor) = answer.split_once('#').unwrap_or((answer, ""));
        let text = fs::read_to_string(root().join("docs").join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        let is_there = |line: &str| line.starts_with('#') && anchor_of(line.trim_start_matches('#')) == anchor;
        assert!(anchor.is_empty() || text.lines().any(is_there), "{page}: expected a heading for #{anchor}");
    }
}

/// Returns the anchor of a heading, as GitHub makes it.
fn anchor_of(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}
