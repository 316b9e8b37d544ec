// Asks for the token, or for a login by an issuer, when the server wants credentials. The page below stays as it is, with everything that was typed.
import { useEffect, useRef, useState } from "preact/hooks";
import { beginLogin, doNotLogIn, issuerLogin, logIn, loginIssuers, loginWanted, type LoginIssuer } from "./api.ts";
import { Button, Dialog, Field, Problem } from "./ui/basics.tsx";

export function Login() {
  const why = loginWanted.value;
  return why === "no" ? null : <LoginForm expired={why === "expired"} />;
}

function LoginForm({ expired }: { expired: boolean }) {
  const [token, setToken] = useState("");
  const [sending, setBusy] = useState(false);
  const [failed, setError] = useState<Error>();
  const [issuers, setIssuers] = useState<LoginIssuer[]>([]);
  const busy = sending || issuerLogin.value.busy === true;
  const error = failed ?? issuerLogin.value.error;
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  useEffect(() => void loginIssuers().then(setIssuers), []);
  const run = (login: Promise<void>) => {
    setBusy(true);
    setError(undefined);
    issuerLogin.value = {};
    login.catch((cause: Error) => {
      setError(cause);
      setBusy(false);
    });
  };
  return (
    <Dialog title={expired ? "Your login has expired" : "Log in"} onClose={doNotLogIn}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (!token || busy) return;
          run(logIn(token));
        }}
      >
        <p>
          {expired
            ? "The gateway no longer accepts the token of this tab. What you typed is kept; after logging in, the action goes on."
            : "Nobody is logged in here, or the token was not accepted."}
        </p>
        <Field label="Token" hint="BEARER_TOKEN of the gateway, or a token that opens the management tools. It becomes a login of at most 12 hours; the token itself is not kept.">
          {(control) => (
            <input {...control} ref={input} type="password" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />
          )}
        </Field>
        {error && <Problem error={error} />}
        {issuers.length > 0 && (
          <div class="actions end">
            {issuers.map(({ issuer, name }) => (
              <Button key={issuer} busy={busy} onClick={() => run(beginLogin(issuer))}>{`Log in with ${name}`}</Button>
            ))}
          </div>
        )}
        <div class="actions end">
          <Button onClick={doNotLogIn}>Not now</Button>
          <Button submit kind="primary" busy={busy} disabled={!token}>Log in</Button>
        </div>
      </form>
    </Dialog>
  );
}
