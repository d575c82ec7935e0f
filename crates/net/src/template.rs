//! A network configuration with holes, filled when the node learns its pod networks.
//!
//! The language is the part of Go's templates that such files use, so that files written for
//! other runtimes work unchanged:
//!
//! ```text
//!   {{.PodCIDR}}  {{$.PodCIDR}}  {{.}}  {{$x}}   a value
//!   {{range .Routes}}…{{else}}…{{end}}           a list; also {{range $x := …}}, {{range $i, $x := …}}
//!   {{if .PodCIDR}}…{{else}}…{{end}}             not empty, not 0
//!   {{- … -}}                                    without the white space beside it
//!   {{/* … */}}                                  nothing
//! ```
//! **Invariant:** parsing finds everything that is not in this list, rendering fails only for
//! a name that is not there or for sheer size.

mod parse;

use std::fmt::Write;

use crate::cidr::Cidr;

/// A template that parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("line {line}: an action is not closed")]
    Open { line: usize },
    #[error("line {line}: {action:?} is not understood here")]
    Action { line: usize, action: String },
    #[error("line {line}: blocks are nested too deep")]
    Deep { line: usize },
    #[error("a block is not ended")]
    Unended,
    #[error("there is no {0}")]
    Unknown(String),
    #[error("{0} is a list: range over it")]
    List(String),
    #[error("{0} is no list")]
    NoList(String),
    #[error("it fills more than {MAX_OUTPUT} bytes or takes more than {MAX_STEPS} steps")]
    TooMuch,
}

const MAX_OUTPUT: usize = 1 << 20;
const MAX_STEPS: usize = 100_000;

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Text(String),
    Value(Expr),
    If {
        test: Expr,
        yes: Vec<Node>,
        no: Vec<Node>,
    },
    Range {
        list: Expr,
        index: Option<String>,
        item: Option<String>,
        body: Vec<Node>,
        empty: Vec<Node>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expr {
    /// `.`
    Dot,
    /// `.Name`
    Field(String),
    /// `$.Name`
    RootField(String),
    /// `$name`
    Variable(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Value<'a> {
    Text(&'a str),
    Number(usize),
    List(&'a [String]),
    /// The whole of it: what `.` is outside of a range.
    Root,
}

/// What the holes are filled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCidrs {
    first: String,
    ranges: Vec<String>,
    routes: Vec<String>,
}

// === impl PodCidrs ===

impl PodCidrs {
    /// The pod networks of the node, the first being the main one. `None` if there is none.
    pub fn new(cidrs: &[Cidr]) -> Option<Self> {
        let default_route = |v4: bool, route: &str| {
            cidrs.iter().any(|cidr| cidr.is_v4() == v4).then(|| route.to_owned())
        };
        let routes = [default_route(true, "0.0.0.0/0"), default_route(false, "::/0")];
        Some(Self {
            first: cidrs.first()?.to_string(),
            ranges: cidrs.iter().map(Cidr::to_string).collect(),
            routes: routes.into_iter().flatten().collect(),
        })
    }
}

// === impl Template ===

impl Template {
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        Ok(Self { nodes: parse::parse(text)? })
    }

    pub fn render(&self, cidrs: &PodCidrs) -> Result<String, TemplateError> {
        let mut render = Render { cidrs, out: String::new(), steps: 0, variables: Vec::new() };
        render.all(&self.nodes, &Value::Root)?;
        Ok(render.out)
    }
}

struct Render<'a> {
    cidrs: &'a PodCidrs,
    out: String,
    steps: usize,
    /// Innermost last.
    variables: Vec<(&'a str, Value<'a>)>,
}

impl<'a> Render<'a> {
    fn all(&mut self, nodes: &'a [Node], dot: &Value<'a>) -> Result<(), TemplateError> {
        nodes.iter().try_for_each(|node| {
            self.steps += 1;
            self.one(node, dot)?;
            let fits = self.steps <= MAX_STEPS && self.out.len() <= MAX_OUTPUT;
            if fits { Ok(()) } else { Err(TemplateError::TooMuch) }
        })
    }

    fn one(&mut self, node: &'a Node, dot: &Value<'a>) -> Result<(), TemplateError> {
        match node {
            Node::Text(text) => self.out.push_str(text),
            Node::Value(expr) => match self.value(expr, dot)? {
                Value::Text(text) => self.out.push_str(text),
                // Writing to a string does not fail.
                Value::Number(number) => drop(write!(self.out, "{number}")),
                Value::List(_) | Value::Root => return Err(TemplateError::List(expr.name())),
            },
            Node::If { test, yes, no } => {
                let holds = self.value(test, dot)?.holds();
                self.all(if holds { yes } else { no }, dot)?;
            }
            Node::Range { list, index, item, body, empty } => {
                let Value::List(items) = self.value(list, dot)? else {
                    return Err(TemplateError::NoList(list.name()));
                };
                if items.is_empty() {
                    return self.all(empty, dot);
                }
                for (number, text) in items.iter().enumerate() {
                    let outer = self.variables.len();
                    let value = Value::Text(text);
                    self.variables
                        .extend(index.as_deref().map(|name| (name, Value::Number(number))));
                    self.variables.extend(item.as_deref().map(|name| (name, value.clone())));
                    let done = self.all(body, &value);
                    self.variables.truncate(outer);
                    done?;
                }
            }
        }
        Ok(())
    }

    fn value(&self, expr: &Expr, dot: &Value<'a>) -> Result<Value<'a>, TemplateError> {
        let unknown = || TemplateError::Unknown(expr.name());
        match expr {
            Expr::Dot => Ok(dot.clone()),
            // Inside a range over texts nothing has fields.
            Expr::Field(_) if *dot != Value::Root => Err(unknown()),
            Expr::Field(name) | Expr::RootField(name) => match name.as_str() {
                "PodCIDR" => Ok(Value::Text(&self.cidrs.first)),
                "PodCIDRRanges" => Ok(Value::List(&self.cidrs.ranges)),
                "Routes" => Ok(Value::List(&self.cidrs.routes)),
                _ => Err(unknown()),
            },
            Expr::Variable(name) => {
                let inner = self.variables.iter().rev().find(|(own, _)| own == name);
                inner.map(|(_, value)| value.clone()).ok_or_else(unknown)
            }
        }
    }
}

impl Value<'_> {
    fn holds(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::Number(number) => *number != 0,
            Self::List(items) => !items.is_empty(),
            Self::Root => true,
        }
    }
}

impl Expr {
    fn name(&self) -> String {
        match self {
            Self::Dot => ".".to_owned(),
            Self::Field(name) => format!(".{name}"),
            Self::RootField(name) => format!("$.{name}"),
            Self::Variable(name) => format!("${name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn render(template: &str, cidrs: &[&str]) -> Result<String, TemplateError> {
        let cidrs: Vec<_> = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
        Template::parse(template)?.render(&PodCidrs::new(&cidrs).unwrap())
    }

    #[track_caller]
    fn check(template: &str, want: &str) {
        let got = render(template, &["10.1.0.0/16", "fd00::/64"]);
        let got = got.unwrap_or_else(|error| format!("error: {error}"));
        assert_eq!(got, want, "{template}");
    }

    #[test]
    fn values() {
        check("plain { } text", "plain { } text");
        check("a {{.PodCIDR}} b", "a 10.1.0.0/16 b");
        check("{{ .PodCIDR }}{{/* hidden {{ */}}!", "10.1.0.0/16!");
        check("a \n {{- .PodCIDR -}} \n b", "a10.1.0.0/16b");
        check("a {{- /* x */ -}} b", "ab");
    }

    #[test]
    fn ranges_and_conditions() {
        check("{{range .Routes}}<{{.}}>{{end}}", "<0.0.0.0/0><::/0>");
        check("{{range $r := .Routes}}{{$r}},{{end}}", "0.0.0.0/0,::/0,");
        check(
            "[{{range $i, $c := .PodCIDRRanges}}{{if $i}}, {{end}}[{\"subnet\": \"{{$c}}\"}]{{end}}]",
            r#"[[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00::/64"}]]"#,
        );
        check("{{if .PodCIDR}}yes{{else}}no{{end}}", "yes");
        check(
            "{{range $i, $a := .Routes}}{{range $j, $b := .PodCIDRRanges}}{{$i}}{{$j}} {{end}}{{end}}",
            "error: there is no .PodCIDRRanges",
        );
        check(
            "{{range $i, $a := .Routes}}{{range $j, $b := $.PodCIDRRanges}}{{$i}}{{$j}} {{end}}{{end}}",
            "00 01 10 11 ",
        );
        assert_eq!(
            render("{{range .Routes}}{{.}}{{else}}none{{end}}", &["10.0.0.0/8"]).unwrap(),
            "0.0.0.0/0"
        );
    }

    #[test]
    fn what_is_not_understood_is_named() {
        check(
            "x\n{{ printf \"%s\" .PodCIDR }}",
            "error: line 2: \"printf \\\"%s\\\" .PodCIDR\" is not understood here",
        );
        check("{{.PodCIDR", "error: line 1: an action is not closed");
        check("{{range .Routes}}x", "error: a block is not ended");
        check("{{end}}", "error: line 1: \"end\" is not understood here");
        check(
            "{{if .Routes}}{{else}}{{else}}{{end}}",
            "error: line 1: \"else\" is not understood here",
        );
        check("{{.Node}}", "error: there is no .Node");
        check("{{$x}}", "error: there is no $x");
        check("{{.Routes}}", "error: .Routes is a list: range over it");
        check("{{range .PodCIDR}}{{end}}", "error: .PodCIDR is no list");
        let deep = "{{if .PodCIDR}}".repeat(100);
        check(&deep, "error: line 1: blocks are nested too deep");
    }

    #[test]
    fn output_is_bounded() {
        let wide = format!("{{{{range .Routes}}}}{}{{{{end}}}}", "x".repeat(MAX_OUTPUT));
        check(&wide, &format!("error: {}", TemplateError::TooMuch));
    }

    proptest! {
        #[test]
        fn no_template_panics(
            text in "\\PC*",
            pieces in proptest::collection::vec(proptest::sample::select(vec![
                "{{", "}}", "{{-", "-}}", "range ", "if ", "else", "end", ".", ".Routes", "$x", "$i, ",
                " := ", "/*", "*/", " ", "\n", "{{end}}", "{{range $i, $x := .Routes}}",
            ]), 0..24),
        ) {
            let _ = render(&text, &["10.0.0.0/8"]);
            let _ = render(&pieces.concat(), &["10.0.0.0/8", "fd00::/8"]);
        }

        #[test]
        fn text_without_actions_stays(text in "[^{}]*") {
            prop_assert_eq!(render(&text, &["10.0.0.0/8"]).unwrap(), text);
        }
    }
}
