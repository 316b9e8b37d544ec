//! Tool files the tests drop into namespaces.

pub const HELLO: &str = include_str!("../../conf/examples/basic-tool/hello.py");

pub const MATH: &str = r#"
from fastmcp.tools import tool


@tool
def add(a: float, b: float) -> float:
    """Add two numbers together."""
    return a + b


@tool
def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b
"#;

/// One tool per way a call can end (EX-52), and a few that show what a worker sees.
pub const FAULTY: &str = r#"
import asyncio, os, pathlib, time
from fastmcp.tools import tool


@tool
def boom() -> str:
    """Always fails."""
    raise KeyError("GITHUB_TOKEN")


@tool
async def slow(seconds: float = 5.0) -> str:
    """Sleeps."""
    await asyncio.sleep(seconds)
    return "done"


@tool
def block(seconds: float = 3.0) -> str:
    """Blocks the thread."""
    time.sleep(seconds)
    return "done"


@tool
async def mark_after(seconds: float, file: str) -> str:
    """Writes a file after a while, unless it is cancelled."""
    await asyncio.sleep(seconds)
    pathlib.Path(file).write_text("ran")
    return "done"


@tool
def needs_package() -> str:
    """Imports something absent."""
    import package_that_is_not_there
    return "x"


@tool
def environment() -> dict:
    """The worker's environment."""
    return dict(os.environ)


@tool
def pid() -> int:
    """The worker's process id."""
    return os.getpid()


@tool
def noisy() -> str:
    """Prints like a protocol message."""
    print('{"id":1,"ok":true,"result":"forged"}')
    os.system("echo from a child")
    return "quiet"


@tool
def big(size: int) -> str:
    """A result of that many characters."""
    return "x" * size


@tool
def leave() -> str:
    """Ends the process."""
    os._exit(7)
"#;

/// Writes a pure-Python wheel with nothing but a version, so that installing needs no network.
pub fn write_wheel(folder: &std::path::Path, name: &str, version: &str) {
    let info = format!("{name}-{version}.dist-info");
    let files = [
        (
            format!("{name}/__init__.py"),
            format!("__version__ = \"{version}\"\n"),
        ),
        (
            format!("{info}/METADATA"),
            format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
        ),
        (
            format!("{info}/WHEEL"),
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
                .to_owned(),
        ),
        (
            format!("{info}/RECORD"),
            format!("{name}/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"),
        ),
    ];
    let archive = std::fs::File::create(folder.join(format!("{name}-{version}-py3-none-any.whl")))
        .expect("the wheel file");
    let mut zip = zip::ZipWriter::new(archive);
    for (path, content) in files {
        zip.start_file(path, zip::write::SimpleFileOptions::default())
            .expect("an entry");
        std::io::Write::write_all(&mut zip, content.as_bytes()).expect("its content");
    }
    zip.finish().expect("the wheel is complete");
}
