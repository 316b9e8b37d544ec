"""A hook that masks personal data: e-mail addresses and card numbers in arguments and results become [email] and [card].

Run it beside the gateway, with Python 3.11 or newer and no packages:

    python3 masking.py 127.0.0.1:8790

and name it in the gateway's configuration:

    hooks:
      - { on: [call, result], namespaces: ["crm"], url: "http://127.0.0.1:8790/" }

Texts are masked, numbers stay. Arguments keep the names of their members, since the schema of the tool defines them. In results
names are masked as well, and a name that would then stand twice gets a number: "[email] 2".
"""

import json
import re
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
CARD = re.compile(r"\b\d(?:[ -]?\d){12,18}\b")


def is_card(digits: str) -> bool:
    """Returns true if the check digit of a card number is right (Luhn)."""
    total = 0
    for at, digit in enumerate(reversed(digits)):
        number = int(digit) * (1 + at % 2)
        total += number - 9 if number > 9 else number
    return total % 10 == 0


def card(found: re.Match[str]) -> str:
    return "[card]" if is_card(re.sub(r"\D", "", found[0])) else found[0]


def masked(value, *, names: bool):
    """Returns a JSON value with all texts in it masked; with `names`, the names of members, too."""
    match value:
        case str():
            return CARD.sub(card, EMAIL.sub("[email]", value))
        case list():
            return [masked(item, names=names) for item in value]
        case dict() if names:
            return masked_members(value)
        case dict():
            return {name: masked(item, names=names) for name, item in value.items()}
    return value


def masked_members(members: dict) -> dict:
    """Returns an object with masked names and values, and as many members as before."""
    shown, repeated = {}, Counter()
    for name, item in members.items():
        hidden = unique = masked(name, names=True)
        while unique in shown:
            repeated[hidden] += 1
            unique = f"{hidden} {repeated[hidden] + 1}"
        shown[unique] = masked(item, names=True)
    return shown


def masked_result(result: dict) -> dict:
    """Returns a masked result. A text that is the JSON form of `structuredContent` stays its JSON form."""
    changed = masked(result, names=True)
    structured = result.get("structuredContent")
    if structured is None or changed["structuredContent"] == structured:
        return changed
    for before, after in zip(result["content"], changed["content"]):
        if before.get("type") == "text" and parsed(before["text"]) == structured:
            after["text"] = json.dumps(changed["structuredContent"], ensure_ascii=False)
    return changed


def parsed(text: str):
    """Returns the value of a JSON text; None for any other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# The member of a request, and of its answer, that belongs to each event, and its masking.
EVENTS = {"call": ("arguments", lambda value: masked(value, names=False)), "result": ("result", masked_result)}


class Hook(BaseHTTPRequestHandler):
    # Keeps the gateway's connections open between requests.
    protocol_version = "HTTP/1.1"
    # Sends the body of an answer at once. Otherwise it waits 40 ms until the gateway has confirmed the head.
    disable_nagle_algorithm = True

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        member, mask = EVENTS.get(request["on"], (None, None))
        answer = {}
        if member is not None:
            changed = mask(request[member])
            if changed != request[member]:
                answer[member] = changed
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Writes no log: the gateway counts the requests."""


if __name__ == "__main__":
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8790").rpartition(":")
    ThreadingHTTPServer((host, int(port)), Hook).serve_forever()
