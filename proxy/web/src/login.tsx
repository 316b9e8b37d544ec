// Asks for the token when the server wants one. The page below stays as it is, with everything that was typed.
import { useEffect, useRef, useState } from "preact/hooks";
import { doNotLogIn, logIn, loginWanted } from "./api.ts";
import { Button, Dialog, Field, Problem } from "./ui/basics.tsx";

export function Login() {
  const why = loginWanted.value;
  return why === "no" ? null : <LoginForm expired={why === "expired"} />;
}

function LoginForm({ expired }: { expired: boolean }) {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  return (
    <Dialog title={expired ? "Your login has expired" : "Log in"} onClose={doNotLogIn}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (!token || busy) return;
          setBusy(true);
          setError(undefined);
          logIn(token).catch((cause: Error) => {
            setError(cause);
            setBusy(false);
          });
        }}
      >
        <p>
          {expired
            ? "The gateway no longer accepts the token of this tab. What you typed is kept; after logging in, the action goes on."
            : "Nobody is logged in here, or the token was not accepted."}
        </p>
        <Field label="Token" hint="BEARER_TOKEN of the gateway, or a token that opens the management tools. It becomes a login of 12 hours; the token itself is not kept.">
          {(control) => (
            <input {...control} ref={input} type="password" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />
          )}
        </Field>
        {error && <Problem error={error} />}
        <div class="actions end">
          <Button onClick={doNotLogIn}>Not now</Button>
          <Button submit kind="primary" busy={busy} disabled={!token}>Log in</Button>
        </div>
      </form>
    </Dialog>
  );
}
