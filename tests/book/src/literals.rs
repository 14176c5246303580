//! The string literals in the sources of the shipped crates, outside of test code.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ExprMethodCall, ImplItem, Item, Lit, Macro};
use vgpu_architecture::modules::Modules;
use vgpu_architecture::syntax::{impl_item_attributes, is_test_only, item_attributes};
use vgpu_architecture::workspace::Package;

/// The crates whose programs and library users run. What these depend on belongs to them.
const SHIPPED: [&str; 4] = ["vgpu-cli", "vgpu-dra", "vgpu-oci-hook", "vgpu-preload"];

/// Returns the shipped crates.
pub fn shipped(packages: &[Package]) -> Vec<&Package> {
    let mut wanted: Vec<&str> = SHIPPED.to_vec();
    let mut found = BTreeMap::new();
    while let Some(name) = wanted.pop() {
        let package = packages.iter().find(|package| package.name == name).filter(|_| !found.contains_key(name));
        let Some(package) = package else { continue };
        found.insert(name, package);
        wanted.extend(package.dependencies.iter().map(String::as_str));
    }
    found.into_values().collect()
}

/// Returns the literals of a crate's files.
///
/// # Panics
/// A source file is not valid Rust.
pub fn of_package(package: &Package, empty: Literals) -> BTreeMap<&str, Vec<String>> {
    let modules = Modules::of(&package.sources).unwrap_or_else(|error| panic!("{}: {error}", package.name));
    let files: BTreeSet<String> = modules.0.into_iter().map(|module| module.file).collect();
    let files = package.sources.iter().filter(|(file, _)| files.contains(*file));
    let literals = |text: &str| {
        let mut literals = empty.clone();
        literals.visit_file(&syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", package.name)));
        literals.found
    };
    files.map(|(file, text)| (file.as_str(), literals(text))).collect()
}

/// Collects literals.
#[derive(Clone, Debug, Default)]
pub struct Literals {
    found: Vec<String>,
    macros: &'static [&'static str],
    methods: &'static [&'static str],
}

impl Literals {
    /// Returns a collection that leaves out the arguments of these macros and methods.
    pub fn without(macros: &'static [&'static str], methods: &'static [&'static str]) -> Self {
        Self { found: vec![], macros, methods }
    }

    /// Adds the literals in a macro's tokens, which are not parsed as Rust. `#[...]` in it is left out, as it is elsewhere.
    fn tokens(&mut self, stream: TokenStream) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let name = |at: Option<usize>| match at.and_then(|at| tokens.get(at)) {
            Some(TokenTree::Ident(name)) => name.to_string(),
            _ => String::new(),
        };
        let is = |at: Option<usize>, wanted| matches!(at.and_then(|at| tokens.get(at)), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted);
        for (index, token) in tokens.iter().enumerate() {
            let [one, two] = [1, 2].map(|back| index.checked_sub(back));
            match token {
                TokenTree::Group(group) => {
                    let is_attribute = is(one, '#') && group.delimiter() == Delimiter::Bracket;
                    let is_macro = is(one, '!') && self.macros.contains(&name(two).as_str());
                    let is_method = is(two, '.') && self.methods.contains(&name(one).as_str());
                    if !is_attribute && !is_macro && !is_method {
                        self.tokens(group.stream());
                    }
                }
                TokenTree::Literal(literal) => {
                    self.literal(&syn::parse_str(&literal.to_string()).unwrap_or(Lit::Verbatim(literal.clone())))
                }
                _ => {}
            }
        }
    }

    fn literal(&mut self, literal: &Lit) {
        match literal {
            Lit::Str(text) => self.found.push(text.value()),
            Lit::CStr(text) => self.found.push(text.value().to_string_lossy().into_owned()),
            Lit::ByteStr(text) => self.found.push(String::from_utf8_lossy(&text.value()).into_owned()),
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Literals {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test_only(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !is_test_only(impl_item_attributes(item)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("error")
            && let Ok(list) = attribute.meta.require_list()
        {
            self.tokens(list.tokens.clone());
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if self.methods.iter().any(|method| call.method == method) {
            self.visit_expr(&call.receiver);
        } else {
            visit::visit_expr_method_call(self, call);
        }
    }

    fn visit_lit(&mut self, literal: &'ast Lit) {
        self.literal(literal);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        if !self.macros.contains(&name.as_str()) {
            self.tokens(call.tokens.clone());
        }
    }
}
