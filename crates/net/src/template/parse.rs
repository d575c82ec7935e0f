//! From text to nodes.

use super::{Expr, Node, TemplateError};

const MAX_DEPTH: usize = 16;

enum Token<'a> {
    Text(&'a str),
    Action { line: usize, text: &'a str },
}

pub(super) fn parse(text: &str) -> Result<Vec<Node>, TemplateError> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: tokens.into_iter() };
    let (nodes, end) = parser.block(0)?;
    match end {
        None => Ok(nodes),
        Some(end) => Err(end.misplaced()),
    }
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, TemplateError> {
    let mut tokens = Vec::new();
    let (mut rest, mut line, mut trim) = (text, 1, false);
    loop {
        let (before, action) = match rest.split_once("{{") {
            Some((before, action)) => (before, Some(action)),
            None => (rest, None),
        };
        let mut shown = if trim { before.trim_start() } else { before };
        line += before.matches('\n').count();
        let Some(action) = action else {
            tokens.push(Token::Text(shown));
            return Ok(tokens);
        };
        // A minus is a marker only with white space on its other side.
        let inner = action.strip_prefix('-').filter(|rest| rest.starts_with(char::is_whitespace));
        if inner.is_some() {
            shown = shown.trim_end();
        }
        tokens.push(Token::Text(shown));
        let inner = inner.unwrap_or(action);
        let (content, after) = close(inner).ok_or(TemplateError::Open { line })?;
        let trimmed = content.strip_suffix('-').filter(|rest| rest.ends_with(char::is_whitespace));
        trim = trimmed.is_some();
        let content = trimmed.unwrap_or(content);
        tokens.push(Token::Action { line, text: content.trim() });
        line += content.matches('\n').count();
        rest = after;
    }
}

/// Splits at the end of an action. A comment may hold anything but its own end.
fn close(action: &str) -> Option<(&str, &str)> {
    let hidden = match action.trim_start().strip_prefix("/*") {
        Some(comment) => action.len() - comment.len() + comment.find("*/")? + 2,
        None => 0,
    };
    let end = hidden + action[hidden..].find("}}")?;
    Some((&action[..end], &action[end + 2..]))
}

struct Parser<'a> {
    tokens: std::vec::IntoIter<Token<'a>>,
}

/// What ended a block.
struct End {
    line: usize,
    is_else: bool,
}

impl End {
    fn misplaced(self) -> TemplateError {
        let action = if self.is_else { "else" } else { "end" };
        TemplateError::Action { line: self.line, action: action.to_owned() }
    }
}

impl Parser<'_> {
    fn block(&mut self, depth: usize) -> Result<(Vec<Node>, Option<End>), TemplateError> {
        let mut nodes = Vec::new();
        while let Some(token) = self.tokens.next() {
            let (line, text) = match token {
                Token::Text("") => continue,
                Token::Text(text) => {
                    nodes.push(Node::Text(text.to_owned()));
                    continue;
                }
                Token::Action { line, text } => (line, text),
            };
            match text {
                "end" | "else" => return Ok((nodes, Some(End { line, is_else: text == "else" }))),
                comment if comment.starts_with("/*") && comment.ends_with("*/") => {}
                action => nodes.push(self.action(action, line, depth)?),
            }
        }
        Ok((nodes, None))
    }

    fn action(&mut self, action: &str, line: usize, depth: usize) -> Result<Node, TemplateError> {
        let wrong = || TemplateError::Action { line, action: action.to_owned() };
        let (word, operand) = action.split_once(char::is_whitespace).unwrap_or((action, ""));
        match word {
            "if" => {
                let test = expr(operand).ok_or_else(wrong)?;
                let (yes, no) = self.branches(line, depth)?;
                Ok(Node::If { test, yes, no })
            }
            "range" => {
                let (index, item, list) = range(operand).ok_or_else(wrong)?;
                let (body, empty) = self.branches(line, depth)?;
                Ok(Node::Range { list, index, item, body, empty })
            }
            _ => expr(action).map(Node::Value).ok_or_else(wrong),
        }
    }

    fn branches(
        &mut self,
        line: usize,
        depth: usize,
    ) -> Result<(Vec<Node>, Vec<Node>), TemplateError> {
        if depth == MAX_DEPTH {
            return Err(TemplateError::Deep { line });
        }
        let (first, end) = self.block(depth + 1)?;
        if !end.ok_or(TemplateError::Unended)?.is_else {
            return Ok((first, Vec::new()));
        }
        let (second, end) = self.block(depth + 1)?;
        match end.ok_or(TemplateError::Unended)? {
            end if end.is_else => Err(end.misplaced()),
            _ => Ok((first, second)),
        }
    }
}

type Range = (Option<String>, Option<String>, Expr);

fn range(text: &str) -> Option<Range> {
    let Some((names, list)) = text.split_once(":=") else {
        return Some((None, None, expr(text.trim())?));
    };
    let list = expr(list.trim())?;
    let variable = |text: &str| match expr(text.trim())? {
        Expr::Variable(name) => Some(name),
        _ => None,
    };
    match names.split_once(',') {
        None => Some((None, Some(variable(names)?), list)),
        Some((index, item)) => Some((Some(variable(index)?), Some(variable(item)?), list)),
    }
}

fn expr(text: &str) -> Option<Expr> {
    let text = text.trim();
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let named = |prefix: &str| text.strip_prefix(prefix).filter(|name| is_name(name));
    if text == "." {
        return Some(Expr::Dot);
    }
    let field = named(".").map(|name| Expr::Field(name.to_owned()));
    let root = || named("$.").map(|name| Expr::RootField(name.to_owned()));
    field.or_else(root).or_else(|| named("$").map(|name| Expr::Variable(name.to_owned())))
}
