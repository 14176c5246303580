//! Questions about syntax that `syn` leaves to its users: names and attributes of items, and which `cfg` predicates hold only in tests.

use syn::punctuated::Punctuated;
use syn::{Attribute, ImplItem, Item, Meta, Token, TraitItem, UseTree};

/// Returns whether only tests are compiled with these attributes: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, ...))]`.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.parse_args::<Meta>().is_ok_and(|predicate| without_test(&predicate) == Some(false))
    })
}

/// Evaluates a `cfg` predicate for a build without tests. `None`: that depends on features or on the target.
fn without_test(predicate: &Meta) -> Option<bool> {
    match predicate {
        Meta::Path(path) if path.is_ident("test") => Some(false),
        Meta::List(list) => {
            let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
            let mut values = inner.iter().map(without_test);
            if list.path.is_ident("not") {
                values.next()?.map(|value| !value)
            } else if list.path.is_ident("all") {
                values.any(|value| value == Some(false)).then_some(false)
            } else {
                values.all(|value| value == Some(false)).then_some(false)
            }
        }
        _ => None,
    }
}

/// Returns the file named by `#[path = "..."]`.
pub fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(file), .. }) => Some(file.value()),
            _ => None,
        },
        _ => None,
    })
}

/// Returns the attributes of an item.
pub fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item in an `impl` block.
pub fn impl_item_attributes(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item in a trait.
pub fn trait_item_attributes(item: &TraitItem) -> &[Attribute] {
    match item {
        TraitItem::Const(item) => &item.attrs,
        TraitItem::Fn(item) => &item.attrs,
        TraitItem::Type(item) => &item.attrs,
        TraitItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the names that an item defines in its module. Modules, imports and macros are not among them.
pub fn defined_names(item: &Item) -> Vec<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        Item::ForeignMod(block) => return block.items.iter().filter_map(foreign_name).collect(),
        _ => return vec![],
    };
    vec![ident.to_string()]
}

fn foreign_name(item: &syn::ForeignItem) -> Option<String> {
    match item {
        syn::ForeignItem::Fn(item) => Some(item.sig.ident.to_string()),
        syn::ForeignItem::Static(item) => Some(item.ident.to_string()),
        syn::ForeignItem::Type(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

/// One name that a `use` declaration imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The name in the importing module; `None` for a glob.
    pub name: Option<String>,
    /// The imported path; for a glob, the path of the module.
    pub path: Vec<String>,
}

/// Returns every name that a `use` tree imports.
pub fn imported(tree: &UseTree) -> Vec<Imported> {
    let mut all = vec![];
    flatten(tree, &[], &mut all);
    all
}

fn flatten(tree: &UseTree, prefix: &[String], all: &mut Vec<Imported>) {
    let joined =
        |name: &syn::Ident| if name == "self" && !prefix.is_empty() { prefix.to_vec() } else { [prefix, &[name.to_string()]].concat() };
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &[prefix, &[path.ident.to_string()]].concat(), all),
        UseTree::Name(name) => {
            let path = joined(&name.ident);
            all.push(Imported { name: path.last().cloned(), path });
        }
        UseTree::Rename(rename) => all.push(Imported { name: Some(rename.rename.to_string()), path: joined(&rename.ident) }),
        UseTree::Glob(_) => all.push(Imported { name: None, path: prefix.to_vec() }),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, all)),
    }
}
