//! The text of clients and server traits.
//!
//! Plain strings: prost-build formats the file they end up in.

use std::fmt::{self, Write};

use prost_build::{Method, Service};

/// A [`prost_build::ServiceGenerator`], for those who run prost-build themselves.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    clients: bool,
    servers: bool,
}

impl Default for Generator {
    fn default() -> Self {
        Self { clients: true, servers: true }
    }
}

impl Generator {
    pub fn client_only() -> Self {
        Self { clients: true, servers: false }
    }

    pub fn server_only() -> Self {
        Self { clients: false, servers: true }
    }
}

impl prost_build::ServiceGenerator for Generator {
    fn generate(&mut self, service: Service, buf: &mut String) {
        let written = write_service(*self, &service, buf);
        written.expect("writing to a String does not fail");
    }
}

fn write_service(generator: Generator, service: &Service, buf: &mut String) -> fmt::Result {
    if generator.clients {
        client(service, buf)?;
    }
    if generator.servers {
        server_trait(service, buf)?;
        server(service, buf)?;
    }
    Ok(())
}

/// The four kinds of methods.
#[derive(Clone, Copy)]
enum Kind {
    Unary,
    ServerStream,
    ClientStream,
    Duplex,
}

impl Kind {
    fn of(method: &Method) -> Self {
        match (method.client_streaming, method.server_streaming) {
            (false, false) => Self::Unary,
            (false, true) => Self::ServerStream,
            (true, false) => Self::ClientStream,
            (true, true) => Self::Duplex,
        }
    }

    /// What `ttrpc::Client` calls it.
    fn client_fn(self) -> &'static str {
        match self {
            Self::Unary => "call",
            other => other.service_fn(),
        }
    }

    /// What `ttrpc::Service` calls it.
    fn service_fn(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ServerStream => "server_stream",
            Self::ClientStream => "client_stream",
            Self::Duplex => "duplex",
        }
    }

    /// The arguments a handler takes after its context.
    fn handler_args(self) -> &'static [&'static str] {
        match self {
            Self::Unary => &["request"],
            Self::ServerStream => &["request", "replies"],
            Self::ClientStream => &["requests"],
            Self::Duplex => &["requests", "replies"],
        }
    }
}

fn full_name(service: &Service) -> String {
    match service.package.as_str() {
        "" => service.proto_name.clone(),
        package => format!("{package}.{}", service.proto_name),
    }
}

// === client ===

fn client(service: &Service, buf: &mut String) -> fmt::Result {
    let (name, full) = (&service.name, full_name(service));
    writeln!(
        buf,
        "/// Calls the service `{full}`. Clones share the connection.
        #[derive(Clone, Debug)]
        pub struct {name}Client {{ client: ::ttrpc::Client }}
        impl {name}Client {{
        /// The name of the service, with its package.
        pub const SERVICE: &'static str = \"{full}\";
        pub fn new(client: ::ttrpc::Client) -> Self {{ Self {{ client }} }}
        /// The connection, to close it or to wait for its end.
        pub fn connection(&self) -> &::ttrpc::Client {{ &self.client }}"
    )?;
    for method in &service.methods {
        method.comments.append_with_indent(1, buf);
        client_method(method, buf)?;
    }
    writeln!(buf, "}}")
}

fn client_method(method: &Method, buf: &mut String) -> fmt::Result {
    let Method { name, proto_name, input_type: req, output_type: res, .. } = method;
    let kind = Kind::of(method);
    let (arg, pass) = match kind {
        Kind::Unary | Kind::ServerStream => (format!(", request: &{req}"), ", request"),
        Kind::ClientStream | Kind::Duplex => (String::new(), ""),
    };
    let result = match kind {
        Kind::Unary => res.clone(),
        Kind::ServerStream => format!("::ttrpc::Receiver<{res}>"),
        Kind::ClientStream => format!("::ttrpc::ClientStream<{req}, {res}>"),
        Kind::Duplex => format!("(::ttrpc::RequestSender<{req}>, ::ttrpc::Receiver<{res}>)"),
    };
    writeln!(
        buf,
        "pub async fn {name}(&self, ctx: &::ttrpc::Context{arg})
            -> ::core::result::Result<{result}, ::ttrpc::Error> {{
            let name = ::ttrpc::MethodName::new(Self::SERVICE, \"{proto_name}\");
            self.client.{}(name, ctx{pass}).await
        }}",
        kind.client_fn()
    )
}

// === server ===

fn server_trait(service: &Service, buf: &mut String) -> fmt::Result {
    service.comments.append_with_indent(0, buf);
    if !service.comments.leading.is_empty() {
        writeln!(buf, "///")?;
    }
    writeln!(
        buf,
        "/// To be implemented by a server of `{}`. A method that is not answers `UNIMPLEMENTED`.
        pub trait {}: Send + Sync + 'static {{",
        full_name(service),
        service.name
    )?;
    for method in &service.methods {
        method.comments.append_with_indent(1, buf);
        trait_method(method, buf)?;
    }
    writeln!(buf, "}}")
}

fn trait_method(method: &Method, buf: &mut String) -> fmt::Result {
    let Method { name, proto_name, input_type: req, output_type: res, .. } = method;
    let kind = Kind::of(method);
    let result = match kind {
        Kind::Unary | Kind::ClientStream => res,
        Kind::ServerStream | Kind::Duplex => "()",
    };
    write!(buf, "fn {name}(&self, ctx: ::ttrpc::ServerContext")?;
    for arg in kind.handler_args() {
        match *arg {
            "request" => write!(buf, ", request: {req}")?,
            "requests" => write!(buf, ", requests: ::ttrpc::Receiver<{req}>")?,
            _ => write!(buf, ", replies: ::ttrpc::ReplySender<{res}>")?,
        }
    }
    writeln!(
        buf,
        ") -> impl ::core::future::Future<
            Output = ::core::result::Result<{result}, ::ttrpc::Status>,
        > + Send {{
            let _ = (ctx, {});
            ::core::future::ready(Err(::ttrpc::Status::unimplemented(\"method {proto_name}\")))
        }}",
        kind.handler_args().join(", ")
    )
}

fn server(service: &Service, buf: &mut String) -> fmt::Result {
    let (name, full) = (&service.name, full_name(service));
    writeln!(
        buf,
        "/// Serves `{full}` by an implementation of [`{name}`].
        #[derive(Debug)]
        pub struct {name}Server<T> {{ handler: ::std::sync::Arc<T> }}
        impl<T: {name}> {name}Server<T> {{
            pub fn new(handler: T) -> Self {{ Self::from_arc(::std::sync::Arc::new(handler)) }}
            pub fn from_arc(handler: ::std::sync::Arc<T>) -> Self {{ Self {{ handler }} }}
        }}
        impl<T: {name}> From<{name}Server<T>> for ::ttrpc::Service {{
            fn from(server: {name}Server<T>) -> Self {{
                let service = ::ttrpc::Service::new(\"{full}\");"
    )?;
    for method in &service.methods {
        register(method, buf)?;
    }
    writeln!(buf, "service }} }}")
}

fn register(method: &Method, buf: &mut String) -> fmt::Result {
    let Method { name, proto_name, .. } = method;
    let kind = Kind::of(method);
    let args = kind.handler_args().join(", ");
    writeln!(
        buf,
        "let handler = ::std::sync::Arc::clone(&server.handler);
        let service = service.{}(\"{proto_name}\", move |ctx, {args}| {{
            let handler = ::std::sync::Arc::clone(&handler);
            async move {{ handler.{name}(ctx, {args}).await }}
        }});",
        kind.service_fn()
    )
}
