// Asks for the token when the server wants one. The page below stays as it is, with everything that was typed.
import { useEffect, useRef, useState } from "preact/hooks";
import { doNotLogIn, logIn, loginWanted } from "./api.ts";
import { Button, Dialog, Field } from "./ui/basics.tsx";

export function Login() {
  const why = loginWanted.value;
  return why === "no" ? null : <LoginForm expired={why === "expired"} />;
}

function LoginForm({ expired }: { expired: boolean }) {
  const [token, setToken] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  return (
    <Dialog title={expired ? "Your login has expired" : "Log in"} onClose={doNotLogIn}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (token) logIn(token);
        }}
      >
        <p>
          {expired
            ? "The gateway no longer accepts the token of this tab. What you typed is kept; after logging in, the action goes on."
            : "The gateway did not accept the token, or none was sent."}
        </p>
        <Field label="Token" hint="BEARER_TOKEN of the gateway, or a token that opens the management tools. Kept in this tab only, until it is closed.">
          {(control) => (
            <input {...control} ref={input} type="password" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />
          )}
        </Field>
        <div class="actions end">
          <Button onClick={doNotLogIn}>Not now</Button>
          <Button submit kind="primary" disabled={!token}>Log in</Button>
        </div>
      </form>
    </Dialog>
  );
}
