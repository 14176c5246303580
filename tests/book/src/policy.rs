//! Reference of the policy file: keys, values and meaning from `config/src/policy.rs`, defaults from `packaging/config.toml`, which a test
//! in `cli/tests/packaging.rs` holds right and complete.

use std::collections::BTreeMap;

use syn::{Attribute, Expr, ExprLit, Fields, Item, ItemEnum, ItemStruct, Lit, LitStr, Meta, Type};

use crate::markdown::{cell, table};
use crate::pages::root;

/// The types of the policy.
#[derive(Default)]
struct Types {
    structs: BTreeMap<String, ItemStruct>,
    enums: BTreeMap<String, ItemEnum>,
}

/// Returns the page of the policy file.
///
/// # Panics
/// A source cannot be read.
pub fn page() -> String {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut types = Types::default();
    for item in syn::parse_file(&read("config/src/policy.rs")).expect("valid Rust").items {
        match item {
            Item::Struct(item) => drop(types.structs.insert(item.ident.to_string(), item)),
            Item::Enum(item) => drop(types.enums.insert(item.ident.to_string(), item)),
            _ => {}
        }
    }
    let shipped = settings(&read("packaging/config.toml"));
    let policy = &types.structs["Policy"];
    let mut page = "# Policy file\n\n`/etc/vgpu/config.toml`, in TOML; `VGPU_CONFIG` in the environment of the runtime's caller, or `--config`, names \
                    another file. An absent file is an empty one. [Policy](../operate/policy.md) explains how to use it.\n\n"
        .to_owned();
    page += &keys(policy, "", &types, &shipped);
    for field in &policy.fields {
        let name = field.ident.as_ref().expect("a named field").to_string();
        if let Some(section) = types.structs.get(&type_name(&field.ty).0) {
            page += &format!("\n## [{name}]\n\n{}\n\n{}", meaning(&field.attrs), keys(section, &name, &types, &shipped));
        }
    }
    page
}

/// Returns the table of a section's keys.
fn keys(section: &ItemStruct, name: &str, types: &Types, shipped: &BTreeMap<(String, String), String>) -> String {
    let Fields::Named(fields) = &section.fields else { panic!("{}: expected named fields", section.ident) };
    let rows = fields.named.iter().filter_map(|field| {
        let key = field.ident.as_ref().expect("a named field").to_string();
        let (kind, is_optional) = type_name(&field.ty);
        if types.structs.contains_key(&kind) {
            return None;
        }
        let shown = shipped.get(&(name.to_owned(), key.clone())).unwrap_or_else(|| panic!("{key}: expected it in packaging/config.toml"));
        let default = if is_optional { format!("unset; such as `{shown}`") } else { format!("`{shown}`") };
        let values = types.enums.get(&kind).map(values).unwrap_or_default();
        Some(vec![format!("`{key}`"), default, format!("{}{values}", meaning(&field.attrs))])
    });
    table(&["key", "default", "meaning"], rows)
}

/// Returns the values of an enumeration, with their meanings.
fn values(item: &ItemEnum) -> String {
    let each = item.variants.iter().map(|variant| {
        let renamed = variant.attrs.iter().find_map(|attribute| attribute.path().is_ident("serde").then(|| rename(attribute)).flatten());
        let name = renamed.unwrap_or_else(|| variant.ident.to_string().to_lowercase());
        format!("`\"{name}\"`: {}", meaning(&variant.attrs).trim_end_matches('.'))
    });
    format!(" {}.", each.collect::<Vec<_>>().join("; "))
}

/// Returns the name in `#[serde(rename = "...")]`.
fn rename(attribute: &Attribute) -> Option<String> {
    let mut name = None;
    attribute
        .parse_nested_meta(|meta| {
            if meta.path.is_ident("rename") {
                name = Some(meta.value()?.parse::<LitStr>()?.value());
            }
            Ok(())
        })
        .ok()?;
    name
}

/// Returns the documentation of an item. A link to another value becomes that value.
fn meaning(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value()),
            _ => None,
        },
        _ => None,
    });
    let text = lines.collect::<Vec<_>>().join(" ");
    let text = text.replace("[`", "`").replace("`]", "`").replace("`None`", "unset");
    cell(
        &text
            .split('`')
            .map(|part| part.rsplit_once("::").map_or(part.to_owned(), |(_, value)| value.to_lowercase()))
            .collect::<Vec<_>>()
            .join("`"),
    )
}

/// Returns the name of a type, that in an `Option` for an optional one.
fn type_name(ty: &Type) -> (String, bool) {
    let Type::Path(path) = ty else { panic!("expected a named type") };
    let last = path.path.segments.last().expect("a path has a segment");
    match &last.arguments {
        syn::PathArguments::AngleBracketed(inner) if last.ident == "Option" => match inner.args.first() {
            Some(syn::GenericArgument::Type(ty)) => (type_name(ty).0, true),
            _ => panic!("expected Option<TYPE>"),
        },
        _ => (last.ident.to_string(), false),
    }
}

/// Returns the values in a policy file whose settings are comments, by section and key.
fn settings(text: &str) -> BTreeMap<(String, String), String> {
    let mut section = String::new();
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((key, value)) = line.strip_prefix('#').and_then(|line| line.split_once(" = "))
            && !key.contains(' ')
        {
            found.insert((section.clone(), key.to_owned()), value.to_owned());
        }
    }
    found
}
