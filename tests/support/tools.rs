//! Tool files that tests put into namespaces.

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

/// A tool for each way in which a call can end (EX-52), and a few that show the environment of a worker.
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

/// Writes a pure-Python wheel that has only a version, so that installing needs no network.
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

/// Tools that send events while they run. Files are their signals: a test decides when they continue.
pub const TALKING: &str = r#"
import asyncio, pathlib
from fastmcp import Context
from fastmcp.tools import tool


async def opened(gate: str):
    while not pathlib.Path(gate).exists():
        await asyncio.sleep(0.01)


@tool
async def talk(ctx: Context, gate: str, before: int = 2, after: int = 2) -> str:
    """Reports progress, waits for the gate, reports the rest."""
    try:
        for step in range(before):
            await ctx.report_progress(step, before + after)
        await opened(gate)
        for step in range(before, before + after):
            await ctx.report_progress(step, before + after)
    except asyncio.CancelledError:
        pathlib.Path(gate + ".cancelled").write_text("cancelled")
        raise
    return "done"


@tool
async def quiet(ctx: Context, gate: str = "") -> str:
    """May talk, but does not."""
    if gate:
        await opened(gate)
    return "done"


@tool
async def flood(ctx: Context, count: int, size: int, pause: float = 0) -> str:
    """Logs a lot: at once, or with pauses in which it can be passed on."""
    for number in range(count):
        await ctx.info(f"{number} " + "x" * size)
        if number % 20 == 0:
            await asyncio.sleep(pause)
    return "done"


@tool
async def logs(ctx: Context) -> str:
    """One message of three levels."""
    await ctx.debug("quietest")
    await ctx.info("middle")
    await ctx.error("loudest")
    return "done"


@tool
async def announce(ctx: Context) -> str:
    """Says that the tools have changed."""
    await ctx.send_tool_list_changed()
    return "announced"


@tool
async def touch(ctx: Context, uri: str) -> str:
    """Says that a resource has changed."""
    await ctx.send_resource_updated(uri)
    return "announced"


@tool
async def ask(ctx: Context, question: str = "Your name?") -> str:
    """Asks the user."""
    answer = await ctx.elicit(question, str)
    return f"{answer.action} {getattr(answer, 'data', None)}"


@tool
async def ask_three(ctx: Context) -> str:
    """Asks three things at once."""
    name, text, roots = await asyncio.gather(
        ctx.elicit("Your name?", str, key="name"), ctx.sample("Hi", key="text"), ctx.list_roots(key="roots")
    )
    return f"{name.data} {text.text} {roots[0].uri}"


@tool
async def ask_twice(ctx: Context) -> str:
    """Asks one thing after the other."""
    first = await ctx.elicit("First?", str, key="first")
    second = await ctx.elicit("Second?", str, key="second")
    return f"{first.data} {second.data}"


@tool
async def runs(ctx: Context, file: str) -> str:
    """Asks, and leaves a mark each time it begins."""
    with open(file, "a") as marks:
        marks.write("run\n")
    answer = await ctx.elicit("Go on?", bool)
    return str(answer.action)
"#;

/// Resources and prompts beside the tools.
pub const OFFERING: &str = r#"
from fastmcp.prompts import prompt
from fastmcp.resources import resource


@resource("test://watched", mime_type="text/plain")
def watched() -> str:
    """Watched."""
    return "content"


@prompt
def greeting(name: str) -> str:
    """A greeting."""
    return f"Hello, {name}!"
"#;
