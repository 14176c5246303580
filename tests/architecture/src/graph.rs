//! The graph of imports between the files of a crate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An import of one file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The importing file.
    pub from: String,
    /// The imported file.
    pub to: String,
    /// The names that it imports.
    pub names: BTreeSet<String>,
}

/// Imports between files. Files are named by their paths below `src`.
#[derive(Debug, Default)]
pub struct Graph {
    files: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

impl Graph {
    /// Adds a file without imports.
    pub fn add_file(&mut self, file: &str) {
        self.files.entry(file.to_owned()).or_default();
    }

    /// Adds the import of `name`. An import of a file from itself is ignored.
    pub fn add_import(&mut self, from: &str, to: &str, name: &str) {
        if from != to {
            self.add_file(to);
            self.files.entry(from.to_owned()).or_default().entry(to.to_owned()).or_default().insert(name.to_owned());
        }
    }

    /// Returns all files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Returns all imports.
    pub fn edges(&self) -> impl Iterator<Item = Edge> {
        self.files
            .iter()
            .flat_map(|(from, imports)| imports.iter().map(|(to, names)| Edge { from: from.clone(), to: to.clone(), names: names.clone() }))
    }

    /// Returns the sets of files that all import each other, directly or through others, without files that are alone.
    pub fn circles(&self) -> Vec<BTreeSet<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> = self.files().map(|file| (file, self.reached_from(file))).collect();
        let mut circles: Vec<BTreeSet<&str>> = vec![];
        for (&file, others) in &reached {
            if others.contains(file) && !circles.iter().any(|circle| circle.contains(file)) {
                circles.push(others.iter().copied().filter(|other| reached[other].contains(file)).collect());
            }
        }
        circles
    }

    /// Returns one shortest way round in a circle, as edges.
    pub fn shortest_way_round(&self, circle: &BTreeSet<&str>) -> Vec<Edge> {
        let ways = circle.iter().filter_map(|file| self.way(file, file, circle));
        let files = ways.min_by_key(Vec::len).unwrap_or_default();
        files.windows(2).map(|pair| self.edge(pair[0], pair[1])).collect()
    }

    fn edge(&self, from: &str, to: &str) -> Edge {
        Edge { from: from.to_owned(), to: to.to_owned(), names: self.files[from][to].clone() }
    }

    fn imports(&self, file: &str) -> impl Iterator<Item = &str> {
        self.files.get(file).into_iter().flat_map(|imports| imports.keys().map(String::as_str))
    }

    fn reached_from(&self, file: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&str> = self.imports(file).collect();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(self.imports(next));
            }
        }
        reached
    }

    /// Returns a shortest way from one file to another, of at least one step, through files in `within`.
    fn way<'a>(&'a self, from: &'a str, to: &str, within: &BTreeSet<&str>) -> Option<Vec<&'a str>> {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut open = VecDeque::from([from]);
        while let Some(file) = open.pop_front() {
            for next in self.imports(file).filter(|next| within.contains(next)) {
                if next == to {
                    let mut way = vec![next, file];
                    while *way.last()? != from {
                        way.push(before[way.last()?]);
                    }
                    way.reverse();
                    return Some(way);
                }
                if next != from && !before.contains_key(next) {
                    before.insert(next, file);
                    open.push_back(next);
                }
            }
        }
        None
    }
}
