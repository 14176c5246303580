//! What one module defines, imports and refers to.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemMod, ItemUse, Macro, Meta, TraitItem, Visibility};

use crate::syntax::{defined_names, impl_item_attributes, imported, is_test_only, item_attributes, trait_item_attributes};
use crate::tokens::{self, Found};

/// A name bound by a `use` declaration.
#[derive(Debug)]
pub struct Import {
    /// The name in this module; `None` for a glob.
    pub name: Option<String>,
    /// The imported path; for a glob, the path of the module.
    pub path: Vec<String>,
    /// Whether the name is exported again.
    pub is_public: bool,
}

/// What one module defines, imports and refers to; test-only code is left out.
///
/// Declarations inside function bodies count as the module's own.
#[derive(Debug, Default)]
pub struct Scope {
    /// Names of the items that the module defines.
    pub items: BTreeSet<String>,
    /// Names of the `macro_rules!` macros that the module defines.
    pub macros: BTreeSet<String>,
    /// Those of `macros` that `#[macro_export]` puts into the crate's root.
    pub exported_macros: BTreeSet<String>,
    /// The module's `use` declarations.
    pub imports: Vec<Import>,
    /// Paths of two or more segments in code, attributes and macros.
    pub paths: BTreeSet<Vec<String>>,
    /// Macros called by name alone.
    pub called_macros: BTreeSet<String>,
}

impl Scope {
    /// Collects the scope of a module with these items. Modules among them are left out.
    pub fn of(items: &[Item]) -> Self {
        let mut scope = Self::default();
        items.iter().for_each(|item| scope.visit_item(item));
        scope
    }

    fn scan(&mut self, tokens: proc_macro2::TokenStream) {
        let mut found = Found::default();
        tokens::scan(tokens, &mut found);
        self.paths.extend(found.paths);
        self.called_macros.extend(found.macros);
    }

    fn define_macro(&mut self, item: &syn::ItemMacro) {
        let Some(name) = &item.ident else { return };
        self.macros.insert(name.to_string());
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
            self.exported_macros.insert(name.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for Scope {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_only(item_attributes(item)) {
            return;
        }
        self.items.extend(defined_names(item));
        if let Item::Macro(definition) = item {
            self.define_macro(definition);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_some() {
            return;
        }
        let is_public = !matches!(item.vis, Visibility::Inherited);
        self.imports.extend(imported(&item.tree).into_iter().map(|it| Import { name: it.name, path: it.path, is_public }));
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !is_test_only(impl_item_attributes(item)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        if !is_test_only(trait_item_attributes(item)) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test_only(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_test_only(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        if !is_test_only(&block.attrs) {
            visit::visit_expr_block(self, block);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let Meta::List(list) = &attribute.meta else { return };
        self.scan(list.tokens.clone());
        for literal in list.tokens.clone() {
            // serde names functions in strings.
            if let Ok(text) = syn::parse2::<syn::LitStr>(literal.into())
                && let Ok(path) = text.parse::<syn::Path>()
            {
                self.visit_path(&path);
            }
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        match call.path.get_ident() {
            Some(name) => _ = self.called_macros.insert(name.to_string()),
            None => visit::visit_path(self, &call.path),
        }
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }
}
